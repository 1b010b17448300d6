"""FP8 block-scaled MoE: one program sorts, two grouped products dequantise in the loop, one kernel combines."""

import torch
import triton
import triton.language as tl
from torch import nn

DTYPES = {"fp8": torch.float8_e4m3fn, "bf16": torch.bfloat16}
GROUP = 128


@triton.jit
def count_pairs(ids, counts, P, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(ids + i, mask=i < P, other=0), 1, mask=i < P)


@triton.jit
def lay_out(counts, first, tile_expert, tile_row, ticket, E, BM: tl.constexpr):
    """One program: where each expert's pairs begin, and a row of the tile table for each tile."""
    at = 0
    tile = 0
    for e in range(E):
        c = tl.load(counts + e)
        tl.store(first + e, at)
        for r in range(0, c, BM):
            tl.store(tile_expert + tile, e)
            tl.store(tile_row + tile, at + r)
            tile += 1
        at += c
    tl.store(first + E, at)
    tl.store(ticket, tile)


@triton.jit
def place_pairs(ids, first, order, P, BLOCK: tl.constexpr):
    e = tl.program_id(0)
    cursor = tl.load(first + e)
    for i0 in range(0, P, BLOCK):
        i = i0 + tl.arange(0, BLOCK)
        hit = (tl.load(ids + i, mask=i < P, other=-1) == e).to(tl.int32)
        tl.store(order + cursor + tl.cumsum(hit, 0) - hit, i, mask=hit > 0)
        cursor += tl.sum(hit, 0)


@triton.jit
def gate_up(
    x, xs, w, ws, order, first, tile_expert, tile_row, ticket, act, H, I, top_k, HG, UG,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    tile = tl.program_id(0)
    if tile >= tl.load(ticket):
        return
    e = tl.load(tile_expert + tile).to(tl.int64)
    row = tl.load(tile_row + tile) + tl.arange(0, BM)
    live = row < tl.load(first + e + 1)
    tok = (tl.load(order + row, mask=live, other=0) // top_k).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    g = tl.zeros((BM, BN), tl.float32)
    u = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, H, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(x + tok[:, None] * H + k[None, :], mask=live[:, None], other=0.0)
        sa = tl.load(xs + tok * HG + k0 // 128, mask=live, other=0.0)
        wg = tl.load(w + (e * 2 * I + n[None, :]) * H + k[:, None], mask=n[None, :] < I, other=0.0)
        wu = tl.load(w + (e * 2 * I + I + n[None, :]) * H + k[:, None], mask=n[None, :] < I, other=0.0)
        sg = tl.load(ws + (e * UG + n // 128) * HG + k0 // 128, mask=n < I, other=0.0)
        su = tl.load(ws + (e * UG + (I + n) // 128) * HG + k0 // 128, mask=n < I, other=0.0)
        g += tl.dot(a, wg) * sa[:, None] * sg[None, :]
        u += tl.dot(a, wu) * sa[:, None] * su[None, :]
    h = g / (1.0 + tl.exp(-g)) * u
    tl.store(act + row[:, None].to(tl.int64) * I + n[None, :], h.to(tl.bfloat16), mask=live[:, None] & (n[None, :] < I))


@triton.jit
def down(
    act, w, ws, order, weights, first, tile_expert, tile_row, ticket, each, H, I, HG, IG,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):
    tile = tl.program_id(0)
    if tile >= tl.load(ticket):
        return
    e = tl.load(tile_expert + tile).to(tl.int64)
    row = tl.load(tile_row + tile) + tl.arange(0, BM)
    live = row < tl.load(first + e + 1)
    pair = tl.load(order + row, mask=live, other=0).to(tl.int64)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, I, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(act + row[:, None].to(tl.int64) * I + k[None, :], mask=live[:, None], other=0.0)
        b = tl.load(w + (e * H + n[None, :]) * I + k[:, None], mask=n[None, :] < H, other=0.0)
        s = tl.load(ws + (e * HG + n // 128) * IG + k0 // 128, mask=n < H, other=0.0)
        acc += tl.dot(a, b.to(tl.bfloat16)) * s[None, :]
    acc *= tl.load(weights + pair, mask=live, other=0.0)[:, None]
    tl.store(each + pair[:, None] * H + n[None, :], acc, mask=live[:, None] & (n[None, :] < H))


@triton.jit
def combine(each, out, H, K, BLOCK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for j in range(K):
        acc += tl.load(each + (t * K + j) * H + c, mask=c < H, other=0.0)
    tl.store(out + t * H + c, acc.to(out.dtype.element_ty), mask=c < H)


class Workspace:
    """Named slabs, grown and never shrunk; `slab` gives a view of the first elements."""

    def __init__(self):
        self._slabs = {}

    def slab(self, name, shape, dtype, device):
        need = torch.Size(shape).numel()
        key = name, dtype, device
        have = self._slabs.get(key)
        if have is None or have.numel() < need:
            have = self._slabs[key] = torch.empty(max(need, 1), dtype=dtype, device=device)
        return have[:need].view(*shape)

    def __len__(self):
        return sum(t.numel() * t.element_size() for t in self._slabs.values())


class Model(nn.Module):
    def __init__(self, num_experts, intermediate_size, top_k, out_dtype="fp8"):
        super().__init__()
        self.E, self.I, self.K = num_experts, intermediate_size, top_k
        self.out_dtype = DTYPES[out_dtype]
        self.space = Workspace()

    def _check(self, hidden_states, w1, w2, a_scale):
        T, H = hidden_states.shape
        if w1.shape != (self.E, 2 * self.I, H) or w2.shape != (self.E, H, self.I):
            raise ValueError(f"weights of {tuple(w1.shape)} and {tuple(w2.shape)}")
        if H % GROUP or self.I % GROUP or a_scale.shape != (T, H // GROUP):
            raise ValueError("whole groups of 128 columns")

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids, a_scale, fc1_scale, fc2_scale):
        self._check(hidden_states, w1, w2, a_scale)
        x, w1, w2, a_scale, fc1_scale, fc2_scale = (
            t.contiguous() for t in (hidden_states, w1, w2, a_scale, fc1_scale, fc2_scale)
        )
        weights, ids = topk_weights.contiguous().view(-1), topk_ids.contiguous().view(-1)
        T, H = x.shape
        E, I, K = self.E, self.I, self.K
        out = torch.empty((T, H), dtype=self.out_dtype, device=x.device)
        P = T * K
        if P == 0:
            return out
        bm = 16 if P <= 16 * E else 64
        most = min(P, P // bm + E)
        i32 = torch.int32
        counts = self.space.slab("counts", (E,), i32, x.device).zero_()
        first = self.space.slab("first", (E + 1,), i32, x.device)
        tile_expert = self.space.slab("tile_expert", (most,), i32, x.device)
        tile_row = self.space.slab("tile_row", (most,), i32, x.device)
        ticket = self.space.slab("ticket", (1,), i32, x.device)
        order = self.space.slab("order", (P,), i32, x.device)
        act = self.space.slab("act", (P, I), torch.bfloat16, x.device)
        each = self.space.slab("each", (P, H), torch.float32, x.device)
        count_pairs[(triton.cdiv(P, 512),)](ids, counts, P, BLOCK=512)
        lay_out[(1,)](counts, first, tile_expert, tile_row, ticket, E, BM=bm)
        place_pairs[(E,)](ids, first, order, P, BLOCK=512)
        hg, ig = H // GROUP, I // GROUP
        gate_up[(most, triton.cdiv(I, 64))](
            x, a_scale, w1, fc1_scale, order, first, tile_expert, tile_row, ticket, act, H, I, K, hg, 2 * ig,
            BM=bm, BN=64, BK=128,
        )
        down[(most, triton.cdiv(H, 64))](
            act, w2, fc2_scale, order, weights, first, tile_expert, tile_row, ticket, each, H, I, hg, ig,
            BM=bm, BN=64, BK=64,
        )
        combine[(T, triton.cdiv(H, 1024))](each, out, H, K, BLOCK=1024)
        return out
