"""paged_attention_decode: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.attention_forward.shortcuts import Outputs, Weigh, attend, softmax, wrongly_weighed


def _paged(
    init: Init,
    inputs: Mapping[str, Tensor],
    weigh: Weigh,
    *,
    consecutive: bool = False,
    whole_blocks: bool = False,
) -> Outputs:
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


def table_ignored(init: Init, inputs: Mapping[str, Tensor]) -> Outputs:
    """Blocks are taken to be consecutive, as production's are."""
    return _paged(init, inputs, softmax, consecutive=True)


def whole_blocks(init: Init, inputs: Mapping[str, Tensor]) -> Outputs:
    """The last block is not masked: what lies behind a sequence's end is read."""
    return _paged(init, inputs, softmax, whole_blocks=True)


SHORTCUTS = {
    **wrongly_weighed(_paged),
    "blocks taken as consecutive": table_ignored,
    "last block not masked": whole_blocks,
}
