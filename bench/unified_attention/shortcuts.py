"""unified_attention: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.attention_forward.shortcuts import Weigh, attend, first_maximum, not_rescaled, uniform


def _paged(
    inputs: Mapping[str, Tensor], weigh: Weigh, *, causal: bool = True, consecutive: bool = False
) -> dict[str, Tensor]:
    """Attention of each sequence over its blocks, or over those that consecutive sequences would own."""
    k_cache, v_cache = inputs["k_cache"], inputs["v_cache"]
    size, first = k_cache.shape[1], 0
    queries = inputs["q"].split(inputs["cu_seqlens_q"].diff().tolist())
    parts = []
    for q, used, row in zip(queries, inputs["seqused_k"].tolist(), inputs["block_table"], strict=True):
        count = -(-used // size)
        blocks = row[:count].long()
        if consecutive:
            blocks = torch.arange(first, first + count, device=row.device) % k_cache.shape[0]
        k, v = (cache[blocks].flatten(0, 1)[:used] for cache in (k_cache, v_cache))
        parts.append(attend(q, k, v, weigh, causal=causal))
        first += count
    return {"out": torch.cat(parts) if parts else inputs["q"].clone()}


def softmax(logits: Tensor) -> Tensor:
    """The right weights."""
    return torch.softmax(logits, -1)


def mean_of_v(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No logits at all: every visible key weighs the same."""
    return _paged(inputs, uniform)


def mask_dropped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every query sees every key of its sequence."""
    return _paged(inputs, softmax, causal=False)


def table_ignored(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Blocks are taken to be consecutive, as production's are."""
    return _paged(inputs, softmax, consecutive=True)


def without_rescaling(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Earlier keys keep the maximum of their time."""
    return _paged(inputs, not_rescaled)


def maximum_of_first(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The running maximum is never updated."""
    return _paged(inputs, first_maximum)


SHORTCUTS = {
    "mean of v": mean_of_v,
    "mask dropped": mask_dropped,
    "blocks taken as consecutive": table_ignored,
    "softmax not rescaled": without_rescaling,
    "running maximum never updated": maximum_of_first,
}
