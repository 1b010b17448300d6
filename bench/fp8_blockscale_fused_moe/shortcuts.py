"""fp8_blockscale_fused_moe: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.fp8_blockscale_fused_moe.reference import reference


def no_routing_weights(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The mean over a token's experts."""
    weights = inputs["topk_weights"]
    return reference(init, {**inputs, "topk_weights": torch.full_like(weights, 1 / weights.shape[1])})


def first_expert_alone(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A token's first expert with the weight of all: a k-th of the work."""
    weights = torch.zeros_like(inputs["topk_weights"])
    weights[:, 0] = inputs["topk_weights"].sum(1)
    return reference(init, {**inputs, "topk_weights": weights})


def one_scale(name: str, init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One scale for all blocks of an operand: their mean."""
    return reference(init, {**inputs, name: inputs[name].mean().expand_as(inputs[name])})


SHORTCUTS = {
    "no routing weights": no_routing_weights,
    "first expert alone": first_expert_alone,
    "one scale for the hidden states": lambda init, inputs: one_scale("a_scale", init, inputs),
    "one scale for w1": lambda init, inputs: one_scale("fc1_scale", init, inputs),
}
