import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def sigmoid(v):
    return 1.0 / (1.0 + tl.exp(-v))


@triton.jit
def kernel(dst, src, half, pitch, ONE: tl.constexpr, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    g = tl.load(src + r * pitch + c, c < half, other=0.0).to(tl.float32)
    y = (g * sigmoid(g)).to(tl.bfloat16)
    if not ONE:
        y = y * tl.load(src + r * pitch + half + c, c < half, other=0.0)
    tl.store(dst + r * half + c, y, c < half)


def _launch(dst, src, half, one):
    block = 256
    kernel[(src.shape[0], triton.cdiv(half, block))](dst, src, half, src.stride(0), ONE=one, B=block)


def gated(x2d):
    width = x2d.shape[1]
    one = width == 1
    half = 1 if one else width // 2
    dst = x2d.new_empty((x2d.shape[0], half))
    if dst.numel():
        _launch(dst, x2d, half, one)
    return dst


class Model(nn.Module):
    def forward(self, x):
        y = gated(x.reshape(-1, x.shape[-1]).contiguous())
        return y.reshape(*x.shape[:-1], y.shape[-1])
