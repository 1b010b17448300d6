"""gate: shapes
Names the expert of its first 128 blocks only.
"""

import torch
import triton
import triton.language as tl
from torch import nn

CHUNK = 128  # ids that a program compares with each other


@triton.jit
def _load_ids(topk_ids, index, pairs, top_k, stride, missing):
    token = (index // top_k).to(tl.int64)
    return tl.load(topk_ids + token * stride + index % top_k, index < pairs, other=missing)


@triton.jit
def _rank_in_chunk(rank, table, topk_ids, pairs, top_k, stride, E, CHUNK: tl.constexpr):
    """For each id how many equal ones precede it in its chunk; [chunk, expert]: how many there are."""
    chunk = tl.program_id(0)
    index = chunk * CHUNK + tl.arange(0, CHUNK)
    mine = _load_ids(topk_ids, index, pairs, top_k, stride, -1)
    others = _load_ids(topk_ids, index, pairs, top_k, stride, -2)
    equal = (mine[:, None] == others[None, :]).to(tl.int32)
    count = tl.sum(equal, axis=1)
    before = tl.sum(tl.where(index[None, :] < index[:, None], equal, 0), axis=1)
    tl.store(rank + index, before, index < pairs)
    last = (index < pairs) & (before == count - 1)
    tl.store(table + chunk.to(tl.int64) * E + mine, count, last)


@triton.jit
def _scan_chunks(counts, table, chunks, E, CHUNKS: tl.constexpr, EXPERTS: tl.constexpr):
    """Exclusive prefix sums of the table over chunks, in place, and each expert's count."""
    expert = (tl.program_id(0) * EXPERTS + tl.arange(0, EXPERTS))[None, :]
    carry = tl.zeros([1, EXPERTS], tl.int32)
    for start in tl.range(0, chunks, CHUNKS):
        chunk = (start + tl.arange(0, CHUNKS))[:, None]
        inside = (chunk < chunks) & (expert < E)
        count = tl.load(table + chunk.to(tl.int64) * E + expert, inside, other=0)
        tl.store(table + chunk.to(tl.int64) * E + expert, carry + tl.cumsum(count, axis=0) - count, inside)
        carry += tl.sum(count, axis=0)[None, :]
    tl.store(counts + expert, carry, expert < E)


@triton.jit
def _scan_experts(starts, total, counts, E, size, BLOCK: tl.constexpr):
    """Where each expert's blocks begin, and the length of all, by one program."""
    lanes = tl.arange(0, BLOCK)
    carry = 0
    for start in tl.range(0, E, BLOCK):
        expert = start + lanes
        count = tl.load(counts + expert, expert < E, other=0)
        padded = (count + size - 1) // size * size
        tl.store(starts + expert, carry + tl.cumsum(padded, axis=0) - padded, expert < E)
        carry += tl.sum(padded, axis=0)
    tl.store(total, carry)


@triton.jit
def _fill(sorted_ids, expert_ids, starts, counts, pairs, size, BLOCK: tl.constexpr):
    """One expert a program: its number at each of its blocks, and the padding of the last one."""
    expert = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    start, count = tl.load(starts + expert), tl.load(counts + expert)
    blocks = (count + size - 1) // size
    number = tl.zeros([BLOCK], tl.int32) + expert
    tl.store(expert_ids + start // size + lanes, number, lanes < blocks)
    for first in tl.range(count, blocks * size, BLOCK):
        place = first + lanes
        padding = tl.zeros([BLOCK], tl.int32) + pairs
        tl.store(sorted_ids + start + place, padding, place < blocks * size)


@triton.jit
def _place(sorted_ids, rank, table, starts, topk_ids, pairs, top_k, stride, E, CHUNK: tl.constexpr):
    chunk = tl.program_id(0)
    index = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = index < pairs
    expert = _load_ids(topk_ids, index, pairs, top_k, stride, 0)
    place = tl.load(starts + expert, inside, other=0)
    place += tl.load(table + chunk.to(tl.int64) * E + expert, inside, other=0)
    place += tl.load(rank + index, inside, other=0)
    tl.store(sorted_ids + place, index, inside)


class Model(nn.Module):
    def __init__(self, num_experts: int, block_size: int = 128) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.block_size = block_size

    def forward(self, topk_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        if topk_ids.stride(-1) != 1:
            topk_ids = topk_ids.contiguous()
        T, top_k = topk_ids.shape
        E, size, pairs, device = self.num_experts, self.block_size, T * top_k, topk_ids.device
        chunks = triton.cdiv(pairs, CHUNK)
        total = torch.zeros(1, dtype=torch.int32, device=device)
        counts, starts = (torch.empty(E, dtype=torch.int32, device=device) for _ in range(2))
        rank = torch.empty(pairs, dtype=torch.int32, device=device)
        table = torch.zeros((max(1, chunks), E), dtype=torch.int32, device=device)
        ids = topk_ids, pairs, top_k, topk_ids.stride(0), E
        if pairs:
            _rank_in_chunk[(chunks,)](rank, table, *ids, CHUNK=CHUNK, num_warps=8)
        across, down = 8, min(128, triton.next_power_of_2(max(1, chunks)))
        _scan_chunks[(triton.cdiv(E, across),)](counts, table, chunks, E, CHUNKS=down, EXPERTS=across)
        _scan_experts[(1,)](starts, total, counts, E, size, BLOCK=min(1024, triton.next_power_of_2(E)))
        padded = int(total)
        sorted_ids = torch.empty(padded, dtype=torch.int32, device=device)
        expert_ids = torch.empty(padded // size, dtype=torch.int32, device=device)
        if pairs:
            _fill[(E,)](sorted_ids, expert_ids, starts, counts, pairs, size, BLOCK=128)
            _place[(chunks,)](sorted_ids, rank, table, starts, *ids, CHUNK=CHUNK)
        return {"sorted_token_ids": sorted_ids, "expert_ids": expert_ids, "num_tokens_post_pad": total}
