"""gate: shapes
Sums the counts of the first 2048 experts in one block, and of no others.
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
def _scan_experts(bounds, counts, E, BLOCK: tl.constexpr):
    """bounds[0] = 0 and bounds[e + 1] = counts[0] + ... + counts[e], by one program."""
    lanes = tl.arange(0, BLOCK)
    tl.store(bounds + lanes, tl.zeros([BLOCK], tl.int32), lanes < 1)
    carry = 0
    count = tl.load(counts + lanes, lanes < E, other=0)
    tl.store(bounds + lanes + 1, carry + tl.cumsum(count, axis=0), lanes < E)


@triton.jit
def _place(sorted_ids, rank, table, bounds, topk_ids, pairs, top_k, stride, E, CHUNK: tl.constexpr):
    chunk = tl.program_id(0)
    index = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = index < pairs
    expert = _load_ids(topk_ids, index, pairs, top_k, stride, 0)
    place = tl.load(bounds + expert, inside, other=0)
    place += tl.load(table + chunk.to(tl.int64) * E + expert, inside, other=0)
    place += tl.load(rank + index, inside, other=0)
    tl.store(sorted_ids + place, index, inside)


class Model(nn.Module):
    def __init__(self, num_experts: int, block_size: int = 128) -> None:
        super().__init__()
        self.num_experts = num_experts
        self.block_size = block_size  # a hint that this sort does not need

    def forward(self, topk_ids: torch.Tensor) -> dict[str, torch.Tensor]:
        if topk_ids.stride(-1) != 1:
            topk_ids = topk_ids.contiguous()
        T, top_k = topk_ids.shape
        E, pairs, device = self.num_experts, T * top_k, topk_ids.device
        chunks = triton.cdiv(pairs, CHUNK)
        sorted_ids = torch.empty(pairs, dtype=torch.int32, device=device)
        counts = torch.empty(E, dtype=torch.int32, device=device)
        bounds = torch.empty(E + 1, dtype=torch.int32, device=device)
        rank = torch.empty(pairs, dtype=torch.int32, device=device)
        table = torch.zeros((max(1, chunks), E), dtype=torch.int32, device=device)
        ids = topk_ids, pairs, top_k, topk_ids.stride(0), E
        if pairs:
            _rank_in_chunk[(chunks,)](rank, table, *ids, CHUNK=CHUNK, num_warps=8)
        across, down = 8, min(128, triton.next_power_of_2(max(1, chunks)))
        _scan_chunks[(triton.cdiv(E, across),)](counts, table, chunks, E, CHUNKS=down, EXPERTS=across)
        _scan_experts[(1,)](bounds, counts, E, BLOCK=min(2048, triton.next_power_of_2(E)))
        if pairs:
            _place[(chunks,)](sorted_ids, rank, table, bounds, *ids, CHUNK=CHUNK)
        return {"sorted_token_ids": sorted_ids, "expert_token_counts": counts, "cumsum": bounds}
