"""fp8_dynamic_per_token_quant: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.fp8 import FP8, FP8_MAX
from atrex.problem import Init


def _quantised(x: Tensor, scale: Tensor) -> dict[str, Tensor]:
    return {"q": (x / scale[:, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8), "scale": scale}


def identity_scale(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A cast: every scale is 1."""
    x = inputs["x"]
    return _quantised(x, torch.ones(x.shape[0], dtype=torch.float32, device=x.device))


def first_row_for_all(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The scale of the first row for every row, as a static quantisation has it."""
    amax = inputs["x"].abs().amax(-1).float().clamp(min=1e-12)
    return _quantised(inputs["x"], (amax[:1] / FP8_MAX).expand_as(amax).contiguous())


def half_of_the_row(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The maximum of every other element."""
    amax = inputs["x"][:, ::2].abs().amax(-1).float().clamp(min=1e-12)
    return _quantised(inputs["x"], amax / FP8_MAX)


SHORTCUTS = {
    "identity scale": identity_scale,
    "scale of the first row": first_row_for_all,
    "maximum of half the row": half_of_the_row,
}
