"""fp8_blockscale_fused_moe: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from atrex.problem import Init
from bench.fp8_blockscale_fused_moe.reference import reference
from bench.fused_moe.shortcuts import misrouted


def one_scale(name: str, init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One scale for all blocks of an operand: their mean."""
    return reference(init, {**inputs, name: inputs[name].mean().expand_as(inputs[name])})


SHORTCUTS = {
    **misrouted(reference),
    "one scale for the hidden states": lambda init, inputs: one_scale("a_scale", init, inputs),
    "one scale for w1": lambda init, inputs: one_scale("fc1_scale", init, inputs),
}
