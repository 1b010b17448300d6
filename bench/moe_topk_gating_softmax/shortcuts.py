"""moe_topk_gating_softmax: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.moe_topk_gating_softmax.reference import reference


def groups_ignored(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The best experts of all groups."""
    return reference({**init, "num_expert_groups": 0, "topk_group": 0}, inputs)


def renormalised(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The softmax over the chosen alone, which needs no sum over all experts."""
    right = reference(init, inputs)
    weights = right["topk_weights"]
    return {**right, "topk_weights": weights / weights.sum(-1, keepdim=True)}


def first_experts(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No selection: the first k experts, by their scores."""
    scores = inputs["gating_output"].softmax(-1)[:, : init["top_k"]]
    weights, ids = scores.sort(-1, descending=True)
    return {"topk_weights": weights, "topk_ids": ids.to(torch.int32)}


def uniform_weights(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The right experts, each with 1 / E."""
    right = reference(init, inputs)
    return {
        **right,
        "topk_weights": torch.full_like(right["topk_weights"], 1 / inputs["gating_output"].shape[1]),
    }


SHORTCUTS = {
    "groups ignored": groups_ignored,
    "weights renormalised": renormalised,
    "first k experts": first_experts,
    "uniform weights": uniform_weights,
}
