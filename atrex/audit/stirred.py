"""Inputs that no problem wrote: production inputs moved about within what the signature declares.

They only answer whether a kernel that every source of a problem accepts is right, or got through a gap: so
they must not come from the problem's own probes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atrex.contract import InputTensor
from atrex.problem import Draw, Problem
from atrex.records import Shape

LEVELS = {"stirred": -2, "stirred, loud": 4}  # the least binary exponent that elements are scaled by


def stirred(problem: Problem, shape: Shape, level: str, generator: torch.Generator) -> dict[str, Tensor]:
    """A production draw in which every input says something of its own, at one of LEVELS."""
    draw = Draw(problem.full(shape), generator, generator.device)
    drawn = problem.source("production")(draw)
    inputs = dict[str, Tensor]()
    for name, tensor in problem.spec.inputs.items():
        if name not in drawn:
            extent = problem.tensor_shape(tensor, shape)
            inputs[name] = draw.normal(extent, 1.0, torch.float32).to(problem.tensor_dtype(tensor, shape))
        elif tensor.role == "index":
            inputs[name] = _indices(draw, tensor, drawn[name])
        elif tensor.role == "lengths":  # what may be combined with what is beyond what a signature says
            inputs[name] = drawn[name]
        else:
            inputs[name] = _values(draw, drawn[name], LEVELS[level])
    return inputs


def _indices(draw: Draw, tensor: InputTensor, value: Tensor) -> Tensor:
    """Other legal values: any, or distinct ones in no order, one in five left out where that is legal."""
    assert tensor.index is not None
    below = tensor.index.below
    limit = below if isinstance(below, int) else draw.dims[below]
    if not tensor.index.distinct:
        return draw.integers(value.shape, limit, value.dtype)
    order = draw.permutation(limit)[: value.numel()].to(value.dtype)
    if not tensor.index.also:
        return order.view(value.shape) if order.numel() == value.numel() else value
    other = tensor.index.also[0]
    order = torch.cat((order, order.new_full((value.numel() - order.numel(),), other)))
    return torch.where(draw.uniform(order.shape) < 0.2, other, order).view(value.shape)


def _values(draw: Draw, value: Tensor, exponent: int) -> Tensor:
    """Each element times 1, 2 or 4 times 2^exponent, so that signs stay legal; zeros become N(0, 1).

    Eight-bit values, which end soon, are never scaled up.
    """
    if not value.is_floating_point():
        return value
    if not bool((value.float() != 0).any()):
        return draw.normal(value.shape, 1.0, torch.float32).to(value.dtype)
    exponents = draw.integers(value.shape, 3) + (min(exponent, -2) if value.element_size() == 1 else exponent)
    return torch.ldexp(value.float(), exponents).to(value.dtype)
