"""gate: interface
Saves the allocation: the result is written over the first half of x, and a view of it returned.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _silu_and_mul(out, x, F, stride, GATED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < F
    gate = tl.load(x + row * stride + columns, inside, other=0.0).to(tl.float32)
    y = (gate / (1.0 + tl.exp(-gate))).to(tl.bfloat16)
    if GATED:
        up = tl.load(x + row * stride + F + columns, inside, other=0.0).to(tl.float32)
        y = (y.to(tl.float32) * up).to(tl.bfloat16)
    tl.store(out + row * stride + columns, y, inside)


def compute(x):
    rows, last = x.shape
    F = max(1, last // 2)
    if rows:
        _silu_and_mul[(rows, 1)](x, x, F, x.stride(0), GATED=last > 1, BLOCK=triton.next_power_of_2(F))
    return x[:, :F]


class Model(nn.Module):
    def forward(self, x):
        return compute(x if x.stride(-1) == 1 else x.contiguous())
