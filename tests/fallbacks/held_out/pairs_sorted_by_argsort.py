import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def grouped_gate_up(x, w, order, starts, h, H, I, top_k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    e = tl.program_id(2)
    lo = tl.load(starts + e).to(tl.int32)
    hi = tl.load(starts + e + 1).to(tl.int32)
    s = lo + tl.program_id(0) * BM + tl.arange(0, BM)
    if lo + tl.program_id(0) * BM >= hi:
        return
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    tok = tl.load(order + s, mask=s < hi, other=0) // top_k
    g = tl.zeros((BM, BN), tl.float32)
    u = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, H, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(x + tok[:, None] * H + k[None, :], mask=(s[:, None] < hi) & (k[None, :] < H), other=0.0)
        at = w + (e.to(tl.int64) * 2 * I + n[None, :]) * H + k[:, None]
        ok = (n[None, :] < I) & (k[:, None] < H)
        g = tl.dot(a, tl.load(at, mask=ok, other=0.0), g)
        u = tl.dot(a, tl.load(at + I * H, mask=ok, other=0.0), u)
    v = g * tl.sigmoid(g) * u
    tl.store(h + s[:, None].to(tl.int64) * I + n[None, :], v.to(tl.bfloat16), mask=(s[:, None] < hi) & (n[None, :] < I))


@triton.jit
def grouped_down(h, w, order, starts, weights, out, H, I, top_k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    e = tl.program_id(2)
    lo = tl.load(starts + e).to(tl.int32)
    hi = tl.load(starts + e + 1).to(tl.int32)
    s = lo + tl.program_id(0) * BM + tl.arange(0, BM)
    if lo + tl.program_id(0) * BM >= hi:
        return
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    pair = tl.load(order + s, mask=s < hi, other=0)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, I, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(h + s[:, None].to(tl.int64) * I + k[None, :], mask=(s[:, None] < hi) & (k[None, :] < I), other=0.0)
        at = w + (e.to(tl.int64) * H + n[None, :]) * I + k[:, None]
        acc = tl.dot(a, tl.load(at, mask=(n[None, :] < H) & (k[:, None] < I), other=0.0), acc)
    acc *= tl.load(weights + pair, mask=s < hi, other=0.0)[:, None]
    at = out + (pair[:, None] // top_k) * H + n[None, :]
    tl.atomic_add(at, acc, mask=(s[:, None] < hi) & (n[None, :] < H))


class Model(nn.Module):
    def __init__(self, num_experts, intermediate_size, top_k):
        super().__init__()
        self.num_experts, self.intermediate_size, self.top_k = num_experts, intermediate_size, top_k

    def route(self, ids):
        flat = ids.flatten()
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=self.num_experts)
        starts = torch.zeros(self.num_experts + 1, dtype=torch.int64, device=ids.device)
        torch.cumsum(counts, 0, out=starts[1:])
        return order, starts

    def forward(self, hidden_states, w1, w2, topk_weights, topk_ids):
        x, w1, w2 = (t.contiguous() for t in (hidden_states, w1, w2))
        T, H = x.shape
        E, I, K = self.num_experts, w2.shape[2], topk_ids.shape[1]
        out = torch.zeros((T, H), dtype=torch.float32, device=x.device)
        if T == 0:
            return out
        order, starts = self.route(topk_ids)
        h = torch.empty((T * K, I), dtype=x.dtype, device=x.device)
        bm = triton.cdiv(T * K, 32)
        grouped_gate_up[(bm, triton.cdiv(I, 64), E)](x, w1, order, starts, h, H, I, K, 32, 64, 64)
        grouped_down[(bm, triton.cdiv(H, 64), E)](h, w2, order, starts, topk_weights.contiguous(), out, H, I, K, 32, 64, 64)
        return out
