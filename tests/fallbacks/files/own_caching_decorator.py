import functools

import torch
import triton
import triton.language as tl
from torch import nn


def checked(function):
    """Refuses what the kernel cannot take, before calling it."""

    @functools.wraps(function)
    def wrapper(x, weight, bias, eps):
        if not x.dtype == weight.dtype == bias.dtype:
            raise ValueError("mixed dtypes")
        return function(x.contiguous(), weight.contiguous(), bias.contiguous(), eps)

    return wrapper


@functools.lru_cache(maxsize=None)
def plan(width):
    block = triton.next_power_of_2(width)
    return block, max(1, min(16, block // 256))


@triton.jit
def _ln(out, x, weight, bias, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    ok = col < N
    v = tl.load(x + row * N + col, ok, other=0.0).to(tl.float32)
    v -= tl.sum(v, 0) / N
    v = tl.where(ok, v, 0.0)
    v *= tl.rsqrt(tl.sum(v * v, 0) / N + eps)
    w = tl.load(weight + col, ok, other=0.0).to(tl.float32)
    b = tl.load(bias + col, ok, other=0.0).to(tl.float32)
    tl.store(out + row * N + col, (v * w + b).to(out.dtype.element_ty), ok)


@checked
def layer_norm(x, weight, bias, eps):
    out = torch.empty_like(x)
    if x.numel():
        block, warps = plan(x.size(-1))
        _ln[(x.numel() // x.size(-1),)](out, x, weight, bias, x.size(-1), eps, BLOCK=block, num_warps=warps)
    return out


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    @torch.no_grad()
    def forward(self, x, weight, bias):
        return layer_norm(x, weight, bias, self.eps)
