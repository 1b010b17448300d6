"""l2_norm: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init


def norm_assumed(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No sum: production rows have a norm near 0.02 sqrt(H)."""
    x = inputs["x"]
    return {"out": (x.float() / (0.02 * x.shape[1] ** 0.5)).to(x.dtype)}


def half_of_the_row(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Twice the sum of every other square."""
    x = inputs["x"].float()
    scale = torch.rsqrt(2 * x[:, ::2].square().sum(-1, keepdim=True) + init["eps"])
    return {"out": (x * scale).to(inputs["x"].dtype)}


SHORTCUTS = {"norm assumed": norm_assumed, "sum of half the row": half_of_the_row}
