"""moe_align_block_size: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.moe_align_block_size.reference import reference


def padded_with_zeros(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Padding that looks like token 0, as memory that is not written often does."""
    right = reference(init, inputs)
    ids = right["sorted_token_ids"]
    return {**right, "sorted_token_ids": ids.masked_fill(ids == inputs["topk_ids"].numel(), 0)}


def descending(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Indices of an expert in descending order: what atomics without an order may give."""
    last = inputs["topk_ids"].numel() - 1
    right = reference(init, {**inputs, "topk_ids": inputs["topk_ids"].flatten().flip(0)[None]})
    ids = right["sorted_token_ids"]
    return {**right, "sorted_token_ids": torch.where(ids <= last, last - ids, ids)}


SHORTCUTS = {"padded with zeros": padded_with_zeros, "descending within an expert": descending}
