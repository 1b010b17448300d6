"""unified_attention: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.attention_forward.shortcuts import Outputs, Weigh, attend, softmax, wrongly_weighed


def _paged(
    init: Init, inputs: Mapping[str, Tensor], weigh: Weigh, *, causal: bool = True, consecutive: bool = False
) -> Outputs:
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


def mask_dropped(init: Init, inputs: Mapping[str, Tensor]) -> Outputs:
    """Every query sees every key of its sequence."""
    return _paged(init, inputs, softmax, causal=False)


def table_ignored(init: Init, inputs: Mapping[str, Tensor]) -> Outputs:
    """Blocks are taken to be consecutive, as production's are."""
    return _paged(init, inputs, softmax, consecutive=True)


SHORTCUTS = {
    **wrongly_weighed(_paged),
    "mask dropped": mask_dropped,
    "blocks taken as consecutive": table_ignored,
}
