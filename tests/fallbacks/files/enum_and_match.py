import enum
import math

import torch
import triton
import triton.language as tl
from torch import nn


class Kind(enum.Enum):
    EMPTY = enum.auto()
    PLAIN = enum.auto()
    GATED = enum.auto()


@triton.jit
def plain_silu(y, x, n, stride, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    v = tl.load(x + i * stride, i < n, other=0.0).to(tl.float32)
    tl.store(y + i, (v / (1.0 + tl.exp(-v))).to(tl.bfloat16), i < n)


@triton.jit
def gated_silu(y, x, f, stride, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * B + tl.arange(0, B)
    v = tl.load(x + r * stride + i, i < f, other=0.0).to(tl.float32)
    u = tl.load(x + r * stride + f + i, i < f, other=0.0)
    tl.store(y + r * f + i, (v / (1.0 + tl.exp(-v))).to(tl.bfloat16) * u, i < f)


def kind_of(rows, last):
    if rows == 0:
        return Kind.EMPTY
    return Kind.PLAIN if last == 1 else Kind.GATED


class Model(nn.Module):
    def forward(self, x):
        *lead, last = x.shape
        rows, f = math.prod(lead), max(1, last // 2)
        x = x.reshape(rows, last).contiguous()
        y = x.new_empty((rows, f))
        match kind_of(rows, last):
            case Kind.EMPTY:
                pass
            case Kind.PLAIN:
                plain_silu[(triton.cdiv(rows, 1024),)](y, x, rows, x.stride(0), B=1024)
            case Kind.GATED if f <= 1 << 20:
                gated_silu[rows, triton.cdiv(f, 512)](y, x, f, x.stride(0), B=512)
            case other:
                raise NotImplementedError(other)
        return y.view(*lead, f)
