import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _narrow(y, x, w, b, n, xs, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    k = c < n
    v = tl.load(x + r * xs + c, k, other=0.0).to(tl.float32)
    mu = tl.sum(v, 0) / n
    d = tl.where(k, v - mu, 0.0)
    rs = 1 / tl.sqrt(tl.sum(d * d, 0) / n + eps)
    g = tl.load(w + c, k, other=0.0).to(tl.float32)
    h = tl.load(b + c, k, other=0.0).to(tl.float32)
    tl.store(y + r * n + c, (d * rs * g + h).to(tl.bfloat16), k)


@triton.jit
def _wide(y, x, w, b, n, xs, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    s = tl.zeros([B], tl.float32)
    for k in range(0, n, B):
        c = k + tl.arange(0, B)
        s += tl.load(x + r * xs + c, c < n, other=0.0).to(tl.float32)
    mu = tl.sum(s, 0) / n
    q = tl.zeros([B], tl.float32)
    for k in range(0, n, B):
        c = k + tl.arange(0, B)
        d = tl.where(c < n, tl.load(x + r * xs + c, c < n, other=0.0).to(tl.float32) - mu, 0.0)
        q += d * d
    rs = 1 / tl.sqrt(tl.sum(q, 0) / n + eps)
    for k in range(0, n, B):
        c = k + tl.arange(0, B)
        v = (tl.load(x + r * xs + c, c < n, other=0.0).to(tl.float32) - mu) * rs
        v = v * tl.load(w + c, c < n, other=0.0).to(tl.float32) + tl.load(b + c, c < n, other=0.0).to(
            tl.float32
        )
        tl.store(y + r * n + c, v.to(tl.bfloat16), c < n)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        n = x.shape[-1]
        flat = x.reshape(-1, n).contiguous()
        y = torch.empty_like(flat)
        weight, bias = weight.contiguous(), bias.contiguous()
        if len(flat) == 0:
            pass
        elif n <= 4096:
            _narrow[(len(flat),)](y, flat, weight, bias, n, n, self.eps, B=triton.next_power_of_2(n))
        else:
            _wide[(len(flat),)](y, flat, weight, bias, n, n, self.eps, B=2048, num_warps=8)
        return y.view_as(x)
