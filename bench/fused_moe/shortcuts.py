"""fused_moe: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.fused_moe.reference import reference

Shortcut = Callable[[Init, Mapping[str, Tensor]], dict[str, Tensor]]


def misrouted(reference: Shortcut) -> dict[str, Shortcut]:
    """Shortcuts that every mixture of experts has: `reference` with other routing weights."""

    def no_weights(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The mean over a token's experts."""
        weights = inputs["topk_weights"]
        return reference(init, {**inputs, "topk_weights": torch.full_like(weights, 1 / weights.shape[1])})

    def first_alone(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A token's first expert with the weight of all: a k-th of the work."""
        weights = torch.zeros_like(inputs["topk_weights"])
        weights[:, 0] = inputs["topk_weights"].sum(1)
        return reference(init, {**inputs, "topk_weights": weights})

    return {"no routing weights": no_weights, "first expert alone": first_alone}


def last_expert_dropped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tokens of the last expert are dropped, as a capacity limit does."""
    full = inputs["topk_ids"] == init["num_experts"] - 1
    return reference(init, {**inputs, "topk_weights": inputs["topk_weights"].masked_fill(full, 0.0)})


def linear_gate(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No exponential: gate / 2 for silu(gate), its tangent at 0, near which production's gates are."""
    x, ids, share = inputs["hidden_states"].float(), inputs["topk_ids"].long(), inputs["topk_weights"]
    out = torch.zeros_like(x)
    for expert in ids.unique().tolist():
        weight = torch.where(ids == expert, share, 0.0).sum(1, keepdim=True)
        gate, up = (x @ inputs["w1"][expert].float().T).chunk(2, -1)
        out += weight * ((gate / 2 * up) @ inputs["w2"][expert].float().T)
    return {"out": out}


SHORTCUTS = {
    **misrouted(reference),
    "last expert dropped": last_expert_dropped,
    "silu by its tangent": linear_gate,
}
