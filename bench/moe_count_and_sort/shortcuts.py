"""moe_count_and_sort: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.moe_count_and_sort.reference import reference


def not_sorted(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Counts and bounds are right, indices 0, 1, 2 …"""
    right = reference(init, inputs)
    order = torch.arange(inputs["topk_ids"].numel(), dtype=torch.int32, device=inputs["topk_ids"].device)
    return {**right, "sorted_token_ids": order}


def descending(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Indices of an expert in descending order: what atomics without an order may give."""
    flipped = inputs["topk_ids"].flatten().flip(0)[None]
    right = reference(init, {**inputs, "topk_ids": flipped})
    return {**right, "sorted_token_ids": flipped.numel() - 1 - right["sorted_token_ids"]}


def even_counts(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No histogram: every expert is taken to have as many tokens."""
    right = reference(init, inputs)
    experts, pairs = right["expert_token_counts"].shape[0], inputs["topk_ids"].numel()
    bounds = torch.arange(experts + 1, device=inputs["topk_ids"].device) * pairs // experts
    return {**right, "expert_token_counts": bounds.diff().int(), "cumsum": bounds.int()}


SHORTCUTS = {
    "not sorted": not_sorted,
    "descending within an expert": descending,
    "even counts": even_counts,
}
