import math

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _stats(mean, rstd, x, H, stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.range(0, H, BLOCK):
        at = k + tl.arange(0, BLOCK)
        total += tl.load(x + row * stride + at, at < H, other=0.0).to(tl.float32)
    mu = tl.sum(total, 0) / H
    spread = tl.zeros([BLOCK], tl.float32)
    for k in tl.range(0, H, BLOCK):
        at = k + tl.arange(0, BLOCK)
        d = tl.load(x + row * stride + at, at < H, other=0.0).to(tl.float32) - mu
        spread += tl.where(at < H, d * d, 0.0)
    tl.store(mean + row, mu)
    tl.store(rstd + row, tl.rsqrt(tl.sum(spread, 0) / H + eps))


@triton.jit
def _apply(out, x, mean, rstd, weight, bias, H, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + at, at < H, other=0.0).to(tl.float32)
    v = (v - tl.load(mean + row)) * tl.load(rstd + row)
    v = v * tl.load(weight + at, at < H, other=0.0) + tl.load(bias + at, at < H, other=0.0)
    tl.store(out + row * H + at, v.to(tl.bfloat16), at < H)


class Model(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        *lead, H = x.shape
        rows = math.prod(lead)
        x2 = x.reshape(rows, H)
        x2 = x2 if x2.stride(1) == 1 else x2.contiguous()
        out = torch.empty((rows, H), dtype=x.dtype, device=x.device)
        if rows == 0:
            return out.view(*lead, H)
        mean, rstd = torch.empty((2, rows), dtype=torch.float32, device=x.device).unbind(0)
        block = min(1024, triton.next_power_of_2(H))
        _stats[(rows,)](mean, rstd, x2, H, x2.stride(0), self.eps, BLOCK=block)
        grid = (rows, triton.cdiv(H, block))
        w, b = weight.to(torch.float32), bias.to(torch.float32)
        _apply[grid](out, x2, mean, rstd, w, b, H, x2.stride(0), BLOCK=block)
        return out.view(*lead, H)
