"""The one place that chooses the FP8 e4m3 variant of this platform.

NVIDIA GPUs and CPUs compute e4m3fn (largest value 448, no infinity, NaN at S.1111.111). AMD's gfx940,
gfx941 and gfx942 compute e4m3fnuz (largest value 240, no infinity, one NaN at the place of -0); gfx950 is
back at e4m3fn. Triton refuses fnuz on NVIDIA. Sources: Micikevicius et al., "FP8 formats for deep learning",
arXiv:2209.05433; AMD CDNA 3 instruction set architecture.
"""

from __future__ import annotations

from typing import Final

import torch

_FNUZ_ARCHITECTURES = ("gfx940", "gfx941", "gfx942")


def _fnuz() -> bool:
    if torch.version.hip is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_properties(0).gcnArchName.split(":")[0] in _FNUZ_ARCHITECTURES


FP8: Final = torch.float8_e4m3fnuz if _fnuz() else torch.float8_e4m3fn
FP8_MAX: Final = float(torch.finfo(FP8).max)
# Dynamic per-group quantisation keeps a margin below fnuz's 240, as serving engines do on that hardware.
FP8_QUANT_MAX: Final = 224.0 if torch.float8_e4m3fnuz == FP8 else FP8_MAX
