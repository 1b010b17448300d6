"""Paged caches: block tables, the slots of keys, and eager attention of one query per sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from atrex.problem import Draw

MOST_SEQUENCES = 1 << 15  # in one batch: some fused kernels have one program in y or z for each


def consecutive_table(draw: Draw, blocks: Tensor, width: int) -> Tensor:
    """Block table [S, width] int32: sequence after sequence owns the next of its `blocks` [S]; else 0."""
    return _table(blocks, width, torch.arange(int(blocks.sum()), device=draw.device))


def permuted_table(draw: Draw, blocks: Tensor, width: int, num_blocks: int) -> Tensor:
    """Disjoint blocks in random order with gaps between them; unused entries name any block at all."""
    table = draw.integers((blocks.numel(), width), num_blocks)
    used = _table(blocks, width, draw.permutation(num_blocks)[: int(blocks.sum())])
    return torch.where(_used(blocks, width), used, table)


def _used(blocks: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=blocks.device) < blocks[:, None]


def _table(blocks: Tensor, width: int, order: Tensor) -> Tensor:
    table = torch.zeros((blocks.numel(), width), dtype=torch.int32, device=blocks.device)
    table[_used(blocks, width)] = order.to(torch.int32)
    return table


def slots(table: Tensor, k_lens: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Block and row within it of every key, packed by sequence: two int64 vectors of sum(k_lens)."""
    sequence = torch.repeat_interleave(k_lens.long())
    first = (k_lens.cumsum(0) - k_lens)[sequence]
    place = torch.arange(sequence.numel(), device=table.device) - first
    return table[sequence, place // block_size].long(), place % block_size


def decode(q: Tensor, k: Tensor, v: Tensor, lens: Sequence[int]) -> Tensor:
    """One query per sequence: q [S, Hkv, g, D] over the first `lens` rows of k and v [S, Hkv, L, D].

    Zeros where there are none. Query heads of a group are the rows of one product. Unequal lengths are
    masked; what lies past the end is zeroed in k and v, the caller's own copies, for 0 times NaN is NaN.
    """
    mask = None
    if any(length != k.shape[2] for length in lens):
        count = torch.tensor(lens, device=q.device)
        mask = (torch.arange(k.shape[2], device=q.device) < count[:, None])[:, None, None]
        k.masked_fill_(~mask.mT, 0)
        v.masked_fill_(~mask.mT, 0)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    if mask is not None and 0 in lens:
        out = out.masked_fill((count == 0)[:, None, None, None], 0)
    return out
