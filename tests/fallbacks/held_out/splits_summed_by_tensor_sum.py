import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def partial_products(a, b, c, M, N, K, per, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = (tl.program_id(0) * BM + tl.arange(0, BM)).to(tl.int64)
    rn = (tl.program_id(1) * BN + tl.arange(0, BN)).to(tl.int64)
    s = tl.program_id(2)
    hi = tl.minimum(K, (s + 1) * per)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(s * per, hi, BK):
        rk = k0 + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < hi), other=0.0)
        y = tl.load(b + rn[None, :] * K + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < hi), other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + (s.to(tl.int64) * M + rm[:, None]) * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def gate(total, bias, mul, out, n, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(total + i, mask=i < n, other=0.0) + tl.load(bias + i % N, mask=i < n, other=0.0).to(tl.float32)
    v = tl.sigmoid(v.to(tl.bfloat16).to(tl.float32)) * tl.load(mul + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(out + i, v.to(tl.bfloat16), mask=i < n)


class SplitKLinear:
    def __init__(self, splits):
        self.splits = splits

    def product(self, a, w):
        (M, K), N = a.shape, w.shape[0]
        ws = torch.empty((self.splits, M, N), dtype=torch.float32, device=a.device)
        per = triton.cdiv(triton.cdiv(K, self.splits), 64) * 64
        partial_products[(triton.cdiv(M, 32), triton.cdiv(N, 64), self.splits)](a, w, ws, M, N, K, per, 32, 64, 64)
        return self.collapse(ws)

    @staticmethod
    def collapse(ws):
        return ws.squeeze(0) if len(ws) == 1 else ws.sum(0)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = SplitKLinear(4)

    def forward(self, hidden_states, weight, bias, post_mul_mat):
        out = torch.empty_like(post_mul_mat, memory_format=torch.contiguous_format)
        n = out.numel()
        if n:
            total = self.linear.product(hidden_states.contiguous(), weight.contiguous())
            gate[(triton.cdiv(n, 1024),)](total, bias, post_mul_mat.contiguous(), out, n, out.shape[1], BLOCK=1024)
        return out
