import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _block_sums(p, x, H, P, B: tl.constexpr):
    r, b = tl.program_id(0).to(tl.int64), tl.program_id(1)
    c = b * B + tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(p + r * P + b, tl.sum(v * v, 0))


@triton.jit
def _finish(y, x, w, sums, H, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    s = tl.rsqrt(tl.load(sums + r) / H + eps)
    tl.store(y + r * H + c, (v * s * tl.load(w + c, c < H, other=0.0).to(tl.float32)).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        x = x.contiguous()
        y = torch.empty_like(x)
        T, H = x.shape
        if T == 0:
            return y
        parts = triton.cdiv(H, 512)
        partials = torch.empty((T, parts), dtype=torch.float32, device=x.device)
        _block_sums[(T, parts)](partials, x, H, parts, B=512)
        sums = partials.sum(-1)
        _finish[(T, parts)](y, x, weight.contiguous(), sums, H, self.eps, B=512)
        return y
