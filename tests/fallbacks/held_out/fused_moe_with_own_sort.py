"""Fused MoE for bf16: counting sort of the routed pairs, two grouped GEMMs, weighted reduction.

The sort is stable by construction: pairs are placed by one program per expert that walks all ids in order.
"""
import functools

import torch
import triton
import triton.language as tl
from torch import nn

BLOCK_PAIRS = 1024


@triton.jit
def moe_histogram(ids, counts, P, E: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    e = tl.load(ids + at, mask=at < P, other=0)
    tl.atomic_add(counts + e, 1, mask=at < P)


@triton.jit
def moe_offsets(counts, starts, tile_of, tile_count, E, BM: tl.constexpr, EP: tl.constexpr):
    e = tl.arange(0, EP)
    c = tl.load(counts + e, mask=e < E, other=0)
    tiles = (c + BM - 1) // BM
    begin = tl.cumsum(c, 0) - c
    first_tile = tl.cumsum(tiles, 0) - tiles
    tl.store(starts + e, begin, mask=e < E)
    tl.store(tile_of + e, first_tile, mask=e < E)
    tl.store(tile_count, tl.sum(tiles, 0))


@triton.jit
def moe_place(ids, starts, order, P, BLOCK: tl.constexpr):
    e = tl.program_id(0)
    cursor = tl.load(starts + e)
    for p0 in range(0, P, BLOCK):
        at = p0 + tl.arange(0, BLOCK)
        mine = (tl.load(ids + at, mask=at < P, other=-1) == e).to(tl.int32)
        slot = cursor + tl.cumsum(mine, 0) - mine
        tl.store(order + slot, at, mask=mine > 0)
        cursor += tl.sum(mine, 0)


@triton.jit
def _find_expert(tile_of, tile, E):
    lo = 0
    hi = E - 1
    while lo < hi:
        mid = (lo + hi + 1) // 2
        if tl.load(tile_of + mid) <= tile:
            lo = mid
        else:
            hi = mid - 1
    return lo


@triton.jit
def moe_gate_up(
    x, w1, order, starts, counts, tile_of, tile_count, hidden, E, H, I, top_k, sx, sw_e, sw_n,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    tile = tl.program_id(0)
    if tile >= tl.load(tile_count):
        return
    e = _find_expert(tile_of, tile, E)
    local = (tile - tl.load(tile_of + e)) * BM + tl.arange(0, BM)
    live = local < tl.load(counts + e)
    slot = tl.load(starts + e) + local
    pair = tl.load(order + slot, mask=live, other=0)
    token = (pair // top_k).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    gate = tl.zeros((BM, BN), tl.float32)
    up = tl.zeros((BM, BN), tl.float32)
    base = w1 + e.to(tl.int64) * sw_e
    for k0 in range(0, H, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(x + token[:, None] * sx + k[None, :], mask=live[:, None] & (k[None, :] < H), other=0.0)
        okb = (n[None, :] < I) & (k[:, None] < H)
        g = tl.load(base + n[None, :].to(tl.int64) * sw_n + k[:, None], mask=okb, other=0.0)
        u = tl.load(base + (n[None, :] + I).to(tl.int64) * sw_n + k[:, None], mask=okb, other=0.0)
        gate = tl.dot(a, g, gate)
        up = tl.dot(a, u, up)
    act = gate * tl.sigmoid(gate) * up
    dst = hidden + slot[:, None].to(tl.int64) * I + n[None, :]
    tl.store(dst, act.to(tl.bfloat16), mask=live[:, None] & (n[None, :] < I))


@triton.jit
def moe_down(
    hidden, w2, order, weights, starts, counts, tile_of, tile_count, pairs_out, E, H, I, sw_e, sw_n,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    tile = tl.program_id(0)
    if tile >= tl.load(tile_count):
        return
    e = _find_expert(tile_of, tile, E)
    local = (tile - tl.load(tile_of + e)) * BM + tl.arange(0, BM)
    live = local < tl.load(counts + e)
    slot = (tl.load(starts + e) + local).to(tl.int64)
    pair = tl.load(order + slot, mask=live, other=0).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, I, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(hidden + slot[:, None] * I + k[None, :], mask=live[:, None] & (k[None, :] < I), other=0.0)
        b = tl.load(
            w2 + e.to(tl.int64) * sw_e + n[None, :].to(tl.int64) * sw_n + k[:, None],
            mask=(n[None, :] < H) & (k[:, None] < I), other=0.0,
        )
        acc = tl.dot(a, b, acc)
    acc *= tl.load(weights + pair, mask=live, other=0.0)[:, None]
    tl.store(pairs_out + pair[:, None] * H + n[None, :], acc, mask=live[:, None] & (n[None, :] < H))


@triton.jit
def moe_combine(pairs_out, out, H, K: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(K):
        total += tl.load(pairs_out + (t * K + j) * H + c, mask=c < H, other=0.0)
    tl.store(out + t * H + c, total, mask=c < H)


@functools.lru_cache(maxsize=None)
def _blocks(pairs_per_expert: int) -> tuple:
    if pairs_per_expert <= 16:
        return 16, 64, 64
    return (32, 64, 64) if pairs_per_expert <= 64 else (64, 128, 64)


class Model(nn.Module):
    def __init__(self, num_experts: int, intermediate_size: int, top_k: int):
        super().__init__()
        self.num_experts, self.intermediate_size, self.top_k = num_experts, intermediate_size, top_k

    def _sort(self, ids: torch.Tensor, block_m: int):
        E, P = self.num_experts, ids.numel()
        counts = torch.zeros(E, dtype=torch.int32, device=ids.device)
        starts, tile_of = torch.empty_like(counts), torch.empty_like(counts)
        tile_count = torch.empty(1, dtype=torch.int32, device=ids.device)
        order = torch.empty(P, dtype=torch.int32, device=ids.device)
        moe_histogram[(triton.cdiv(P, BLOCK_PAIRS),)](ids, counts, P, E=E, BLOCK=BLOCK_PAIRS)
        moe_offsets[(1,)](counts, starts, tile_of, tile_count, E, BM=block_m, EP=triton.next_power_of_2(E))
        moe_place[(E,)](ids, starts, order, P, BLOCK=BLOCK_PAIRS)
        return counts, starts, tile_of, tile_count, order

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids):
        T, H = hidden_states.shape
        E, I, K = self.num_experts, w2.shape[2], topk_ids.shape[1]
        out = torch.empty((T, H), dtype=torch.float32, device=hidden_states.device)
        if T == 0:
            return out
        x = hidden_states if hidden_states.stride(1) == 1 else hidden_states.contiguous()
        w1, w2 = (w if w.stride(2) == 1 else w.contiguous() for w in (w1, w2))
        ids = topk_ids.reshape(-1).contiguous()
        weights = topk_weights.reshape(-1).contiguous()
        pairs = T * K
        bm, bn, bk = _blocks(triton.next_power_of_2(max(1, pairs // E)))
        counts, starts, tile_of, tile_count, order = self._sort(ids, bm)
        most_tiles = min(pairs, pairs // bm + E)
        act = torch.empty((pairs, I), dtype=torch.bfloat16, device=x.device)
        each = torch.empty((pairs, H), dtype=torch.float32, device=x.device)
        moe_gate_up[(most_tiles, triton.cdiv(I, bn))](
            x, w1, order, starts, counts, tile_of, tile_count, act, E, H, I, K,
            x.stride(0), w1.stride(0), w1.stride(1), BM=bm, BN=bn, BK=bk, num_stages=3,
        )
        moe_down[(most_tiles, triton.cdiv(H, bn))](
            act, w2, order, weights, starts, counts, tile_of, tile_count, each, E, H, I,
            w2.stride(0), w2.stride(1), BM=bm, BN=bn, BK=bk, num_stages=3,
        )
        moe_combine[(T, triton.cdiv(H, 1024))](each, out, H, K=K, BLOCK=1024)
        return out
