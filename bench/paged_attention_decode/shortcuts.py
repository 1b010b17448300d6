"""paged_attention_decode: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.attention_forward.shortcuts import Weigh, attend, first_maximum, not_rescaled, uniform


def _paged(
    inputs: Mapping[str, Tensor], weigh: Weigh, *, consecutive: bool = False, whole_blocks: bool = False
) -> dict[str, Tensor]:
    """Attention of each sequence's query over its keys, or all rows of its blocks."""
    k_cache, v_cache = inputs["k_cache"], inputs["v_cache"]
    blocks, kv_heads, _, size, _ = k_cache.shape
    out, first = torch.zeros_like(inputs["query"]), 0
    for sequence, used in enumerate(inputs["seq_lens"].tolist()):
        count = -(-used // size)
        own = inputs["block_tables"][sequence, :count].long()
        if consecutive:
            own = torch.arange(first, first + count, device=out.device) % blocks
        k = k_cache[own].permute(0, 3, 1, 2, 4).reshape(count * size, kv_heads, -1)
        v = v_cache[own].permute(0, 3, 1, 2).reshape(count * size, kv_heads, -1)
        keys = count * size if whole_blocks else used
        out[sequence] = attend(inputs["query"][sequence, None], k[:keys], v[:keys], weigh)[0]
        first += count
    return {"out": out}


def softmax(logits: Tensor) -> Tensor:
    """The right weights."""
    return torch.softmax(logits, -1)


def mean_of_v(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """No logits at all: every key weighs the same."""
    return _paged(inputs, uniform)


def table_ignored(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Blocks are taken to be consecutive, as production's are."""
    return _paged(inputs, softmax, consecutive=True)


def whole_blocks(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The last block is not masked: what lies behind a sequence's end is read."""
    return _paged(inputs, softmax, whole_blocks=True)


def without_rescaling(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Earlier keys keep the maximum of their time."""
    return _paged(inputs, not_rescaled)


def maximum_of_first(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The running maximum is never updated."""
    return _paged(inputs, first_maximum)


SHORTCUTS = {
    "mean of v": mean_of_v,
    "blocks taken as consecutive": table_ignored,
    "last block not masked": whole_blocks,
    "softmax not rescaled": without_rescaling,
    "running maximum never updated": maximum_of_first,
}
