from __future__ import annotations

import typing as t

import torch
import triton
import triton.language as tl
from torch import nn

Stage = t.Tuple[t.Any, t.Tuple[int, ...], t.Tuple[t.Any, ...], t.Dict[str, t.Any]]


@triton.jit
def count(ids, counts, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(ids + i, mask=i < n, other=0), 1, mask=i < n)


@triton.jit
def offsets(counts, begin, total, E, SIZE, EP: tl.constexpr):
    e = tl.arange(0, EP)
    c = tl.load(counts + e, mask=e < E, other=0)
    padded = (c + SIZE - 1) // SIZE * SIZE
    tl.store(begin + e, tl.cumsum(padded, 0) - padded, mask=e < E)
    tl.store(total, tl.sum(padded, 0))


@triton.jit
def label(counts, begin, expert_ids, SIZE):
    e = tl.program_id(0)
    blocks = (tl.load(counts + e) + SIZE - 1) // SIZE
    first = tl.load(begin + e) // SIZE
    for j in range(blocks):
        tl.store(expert_ids + first + j, e)


@triton.jit
def place(ids, begin, sorted_ids, n, BLOCK: tl.constexpr):
    e = tl.program_id(0)
    cursor = tl.load(begin + e)
    for i0 in range(0, n, BLOCK):
        i = i0 + tl.arange(0, BLOCK)
        hit = (tl.load(ids + i, mask=i < n, other=-1) == e).to(tl.int32)
        tl.store(sorted_ids + cursor + tl.cumsum(hit, 0) - hit, i, mask=hit == 1)
        cursor += tl.sum(hit, 0)


def run(stages: t.Iterable[Stage]) -> None:
    for kernel, grid, args, meta in stages:
        if min(grid) > 0:
            kernel[grid](*args, **meta)


class Model(nn.Module):
    def __init__(self, block_size: int = 128, num_experts: int = 8):
        super().__init__()
        self.block_size: t.Final[int] = block_size
        self.num_experts: t.Final[int] = num_experts

    def forward(self, topk_ids: torch.Tensor) -> t.Dict[str, torch.Tensor]:
        ids = topk_ids.contiguous().view(-1)
        n, E, size = ids.numel(), self.num_experts, self.block_size
        most = n + E * (size - 1)
        most_blocks = (most + size - 1) // size
        kw = {"dtype": torch.int32, "device": ids.device}
        sorted_ids = torch.empty(most, **kw)
        sorted_ids.fill_(n)
        expert_ids = torch.full((most_blocks,), 0, **kw)
        counts = torch.zeros(E, **kw)
        begin = torch.empty(E, **kw)
        total = torch.zeros(1, **kw)
        stages: t.List[Stage] = [
            (count, (triton.cdiv(n, 1024),), (ids, counts, n), {"BLOCK": 1024}),
            (offsets, (1,), (counts, begin, total, E, size), {"EP": triton.next_power_of_2(E)}),
            (label, (E,), (counts, begin, expert_ids, size), {}),
            (place, (E,), (ids, begin, sorted_ids, n), {"BLOCK": 1024}),
        ]
        run(stages)
        return {"sorted_token_ids": sorted_ids, "expert_ids": expert_ids, "num_tokens_post_pad": total}
