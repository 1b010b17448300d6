"""silu_and_mul: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from atrex.problem import Init


def _gated(inputs: Mapping[str, Tensor], activation: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    x = inputs["x"]
    if x.shape[-1] == 1:
        return {"out": activation(x.float()).to(x.dtype)}
    gate, up = x.chunk(2, -1)
    return {"out": activation(gate.float()).to(x.dtype) * up}


def relu(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No exponential: relu instead of silu."""
    return _gated(inputs, torch.relu)


def hard_swish(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No exponential: its piecewise quadratic stand-in."""
    return _gated(inputs, torch.nn.functional.hardswish)


def product_skipped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """silu of the gate alone; the second half is not read."""
    x = inputs["x"]
    return {"out": torch.nn.functional.silu(x if x.shape[-1] == 1 else x.chunk(2, -1)[0])}


SHORTCUTS = {"relu for silu": relu, "hard swish for silu": hard_swish, "product skipped": product_skipped}
