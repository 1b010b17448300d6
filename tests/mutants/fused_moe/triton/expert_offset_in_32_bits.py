"""gate: layouts
The offset of an expert's matrix is computed in 32 bits.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _count(counts, ids, pairs, token_stride, top_k, BLOCK: tl.constexpr):
    """One expert a program: how many pairs choose it."""
    found = tl.zeros([BLOCK], tl.int32)
    for start in tl.range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        at = (pair // top_k).to(tl.int64) * token_stride + pair % top_k
        found += (tl.load(ids + at, pair < pairs, other=-1) == tl.program_id(0)).to(tl.int32)
    tl.store(counts + tl.program_id(0), tl.sum(found, axis=0))


@triton.jit
def _scan(tiles, firsts, counts, E, BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr):
    """The first tile and the first sorted pair of every expert, and behind them their totals."""
    expert = tl.arange(0, BLOCK_E)
    count = tl.load(counts + expert, expert < E, other=0)
    tl.store(tiles, 0)
    tl.store(firsts, 0)
    tl.store(tiles + 1 + expert, tl.cumsum((count + BLOCK_M - 1) // BLOCK_M, 0), expert < E)
    tl.store(firsts + 1 + expert, tl.cumsum(count, 0), expert < E)


@triton.jit
def _place(order, ids, firsts, pairs, token_stride, top_k, BLOCK: tl.constexpr):
    """One expert a program: its pairs, ascending, from its first place on."""
    free = tl.load(firsts + tl.program_id(0))
    for start in tl.range(0, pairs, BLOCK):
        pair = start + tl.arange(0, BLOCK)
        at = (pair // top_k).to(tl.int64) * token_stride + pair % top_k
        mine = (tl.load(ids + at, pair < pairs, other=-1) == tl.program_id(0)).to(tl.int32)
        tl.store(order + free + tl.cumsum(mine, 0) - 1, pair, mine != 0)
        free += tl.sum(mine, axis=0)


@triton.jit
def _expert_of(tile, tiles, E):
    """The expert with `tile` among its tiles; there must be one."""
    low, high = 0, E
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(tiles + middle) <= tile
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def _gate_up(
    middle,
    hidden,
    w1,
    order,
    tiles,
    firsts,
    E,
    H,
    F,
    top_k,
    hidden_stride,
    w1_expert,
    w1_row,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """middle[place] = silu(x gate^T) * (x up^T), rounded to bf16, in sorted order."""
    tile = tl.program_id(0)
    if tile >= tl.load(tiles + E):
        return
    expert = _expert_of(tile, tiles, E)
    place = tl.load(firsts + expert) + (tile - tl.load(tiles + expert)) * BLOCK_M + tl.arange(0, BLOCK_M)
    mine = place < tl.load(firsts + expert + 1)
    token = (tl.load(order + place, mine, other=0) // top_k).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    left = hidden + (token * hidden_stride)[:, None] + inner[None, :]
    gate_at = w1 + expert * w1_expert + (column * w1_row)[None, :] + inner[:, None]
    up_at = gate_at + F * w1_row
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, H, BLOCK_K):
        rest = H - start
        x = tl.load(left, mine[:, None] & (inner[None, :] < rest), other=0.0)
        held = (column[None, :] < F) & (inner[:, None] < rest)
        gate = tl.dot(x, tl.load(gate_at, held, other=0.0), gate)
        up = tl.dot(x, tl.load(up_at, held, other=0.0), up)
        left += BLOCK_K
        gate_at += BLOCK_K
        up_at += BLOCK_K
    active = gate / (1.0 + tl.exp(-gate)) * up
    at = middle + (place.to(tl.int64) * F)[:, None] + column[None, :]
    tl.store(at, active.to(tl.bfloat16), mine[:, None] & (column[None, :] < F))


@triton.jit
def _down(
    results,
    middle,
    w2,
    order,
    tiles,
    firsts,
    E,
    H,
    F,
    w2_expert,
    w2_row,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """results[pair] = middle w2^T in fp32, each at its pair's own place."""
    tile = tl.program_id(0)
    if tile >= tl.load(tiles + E):
        return
    expert = _expert_of(tile, tiles, E)
    place = tl.load(firsts + expert) + (tile - tl.load(tiles + expert)) * BLOCK_M + tl.arange(0, BLOCK_M)
    mine = place < tl.load(firsts + expert + 1)
    pair = tl.load(order + place, mine, other=0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    left = middle + (place.to(tl.int64) * F)[:, None] + inner[None, :]
    right = w2 + expert * w2_expert + (column * w2_row)[None, :] + inner[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in tl.range(0, F, BLOCK_K):
        rest = F - start
        x = tl.load(left, mine[:, None] & (inner[None, :] < rest), other=0.0)
        w = tl.load(right, (column[None, :] < H) & (inner[:, None] < rest), other=0.0)
        total = tl.dot(x, w, total)
        left += BLOCK_K
        right += BLOCK_K
    at = results + (pair * H)[:, None] + column[None, :]
    tl.store(at, total, mine[:, None] & (column[None, :] < H))


@triton.jit
def _combine(out, results, weights, H, top_k, weight_stride, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros([BLOCK], tl.float32)
    for choice in tl.range(0, top_k):
        value = tl.load(results + (token * top_k + choice) * H + column, column < H, other=0.0)
        total += tl.load(weights + token * weight_stride + choice) * value
    tl.store(out + token * H + column, total, column < H)


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Model(nn.Module):
    def __init__(self, num_experts: int, intermediate_size: int, top_k: int) -> None:
        super().__init__()
        self.num_experts, self.intermediate_size, self.top_k = num_experts, intermediate_size, top_k

    def forward(
        self,
        hidden_states: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
    ) -> torch.Tensor:
        x, w1, w2, weights, ids = (_with_rows(t) for t in (hidden_states, w1, w2, topk_weights, topk_ids))
        (T, H), E, F, top_k = x.shape, self.num_experts, self.intermediate_size, self.top_k
        out = torch.empty((T, H), dtype=torch.float32, device=x.device)
        if T == 0:
            return out
        pairs = T * top_k
        each = pairs // E
        block_m = 16 if each <= 16 else 32 if each <= 64 else 64
        counts = torch.empty(E, dtype=torch.int32, device=x.device)
        tiles, firsts = (torch.empty(E + 1, dtype=torch.int32, device=x.device) for _ in range(2))
        order = torch.empty(pairs, dtype=torch.int32, device=x.device)
        middle = torch.empty((pairs, F), dtype=x.dtype, device=x.device)
        results = torch.empty((pairs, H), dtype=torch.float32, device=x.device)
        _count[(E,)](counts, ids, pairs, ids.stride(0), top_k, BLOCK=2048)
        _scan[(1,)](tiles, firsts, counts, E, BLOCK_E=triton.next_power_of_2(E), BLOCK_M=block_m)
        _place[(E,)](order, ids, firsts, pairs, ids.stride(0), top_k, BLOCK=2048)
        sorted_by = (order, tiles, firsts, E, H, F)
        most = pairs // block_m + min(E, pairs)
        sizes = {"BLOCK_M": block_m, "BLOCK_N": 64, "BLOCK_K": 64, "num_stages": 3}
        strides = x.stride(0), *w1.stride()[:2]
        _gate_up[(most, triton.cdiv(F, 64))](middle, x, w1, *sorted_by, top_k, *strides, **sizes)
        _down[(most, triton.cdiv(H, 64))](results, middle, w2, *sorted_by, *w2.stride()[:2], **sizes)
        _combine[(T, triton.cdiv(H, 1024))](out, results, weights, H, top_k, weights.stride(0), BLOCK=1024)
        return out
