"""rms_norm: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init


def _scaled(inputs: Mapping[str, Tensor], scale: Tensor | float) -> dict[str, Tensor]:
    x = inputs["x"]
    return {"out": (x.float() * scale * inputs["weight"].float()).to(x.dtype)}


def norm_skipped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """x times the weight."""
    return _scaled(inputs, 1.0)


def mean_square_assumed(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No sum: production rows have a mean square of 0.02^2."""
    return _scaled(inputs, 50.0)


def half_of_the_row(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The mean square of every other element."""
    square = inputs["x"][:, ::2].float().square().mean(-1, keepdim=True)
    return _scaled(inputs, torch.rsqrt(square + init["eps"]))


SHORTCUTS = {
    "norm skipped": norm_skipped,
    "mean square assumed": mean_square_assumed,
    "mean square of half the row": half_of_the_row,
}
