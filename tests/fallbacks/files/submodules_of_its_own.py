import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _add(out, a, b, n, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    s = tl.load(a + i, i < n, other=0.0).to(tl.float32) + tl.load(b + i, i < n, other=0.0).to(tl.float32)
    tl.store(out + i, s.to(tl.bfloat16), i < n)


@triton.jit
def _norm(out, x, w, H, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    g = tl.load(w + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + r * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) / H + eps) * g).to(tl.bfloat16), c < H)


class Add(nn.Module):
    def forward(self, a, b):
        out = torch.empty(a.shape, dtype=a.dtype, device=a.device)
        n = out.numel()
        if n:
            _add[(triton.cdiv(n, 1024),)](out, a.contiguous(), b.contiguous(), n, B=1024)
        return out


class RMSNorm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        out = torch.empty_like(x)
        T, H = x.shape
        if T:
            _norm[(T,)](out, x, weight.contiguous(), H, self.eps, B=triton.next_power_of_2(H))
        return out


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.layers = nn.ModuleDict({"add": Add(), "norm": RMSNorm(eps)})

    def forward(self, x, residual, weight):
        total = self.layers["add"](x, residual)
        return {"out": self.layers["norm"](total, weight), "residual": total}
