"""per_token_group_quant_fp8: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.fp8 import FP8, FP8_QUANT_MAX
from atrex.problem import Init


def _quantised(init: Init, x: Tensor, scales: Tensor) -> dict[str, Tensor]:
    """x over these scales [T, groups]."""
    quotient = x.unflatten(-1, (-1, init["group_size"])) / scales[..., None]
    clamped = quotient.clamp(-FP8_QUANT_MAX, FP8_QUANT_MAX)
    return {"quantized": clamped.to(FP8).view(x.shape), "scales": scales}


def _amax(init: Init, x: Tensor) -> Tensor:
    groups: Tensor = x.unflatten(-1, (-1, init["group_size"]))
    return groups.abs().amax(-1).float()


def identity_scales(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A cast: every scale is 1."""
    return _quantised(init, inputs["x"], torch.ones_like(_amax(init, inputs["x"])))


def one_scale_a_row(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One maximum for all groups of a row."""
    amax = _amax(init, inputs["x"])
    return _quantised(
        init, inputs["x"], (amax.amax(-1, True) / FP8_QUANT_MAX).clamp(min=1e-10).expand_as(amax)
    )


def right_codes_assumed_scales(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Codes of the right scales, but 2.8 / max in their place: what production's maxima are near."""
    scales = (_amax(init, inputs["x"]) / FP8_QUANT_MAX).clamp(min=1e-10)
    return {**_quantised(init, inputs["x"], scales), "scales": torch.full_like(scales, 2.8 / FP8_QUANT_MAX)}


SHORTCUTS = {
    "identity scales": identity_scales,
    "one scale a row": one_scale_a_row,
    "scales assumed, codes right": right_codes_assumed_scales,
}
