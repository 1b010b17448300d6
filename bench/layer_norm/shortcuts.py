"""layer_norm: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init


def _scaled(inputs: Mapping[str, Tensor], centred: Tensor, scale: Tensor | float) -> dict[str, Tensor]:
    out = centred * scale * inputs["weight"].float() + inputs["bias"].float()
    return {"out": out.to(inputs["x"].dtype)}


def mean_not_subtracted(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """rms_norm with a bias: production rows have a mean near 0."""
    x = inputs["x"].float()
    return _scaled(inputs, x, torch.rsqrt(x.square().mean(-1, keepdim=True) + init["eps"]))


def variance_assumed(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No second moment: production rows have a variance of 0.02^2."""
    x = inputs["x"].float()
    return _scaled(inputs, x - x.mean(-1, keepdim=True), (0.02**2 + init["eps"]) ** -0.5)


def half_of_the_row(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Mean and variance of every other element."""
    x = inputs["x"].float()
    half = x[:, ::2]
    spread = half.var(-1, keepdim=True, correction=0)
    return _scaled(inputs, x - half.mean(-1, keepdim=True), torch.rsqrt(spread + init["eps"]))


SHORTCUTS = {
    "mean not subtracted": mean_not_subtracted,
    "variance assumed": variance_assumed,
    "moments of half the row": half_of_the_row,
}
