"""gate: determinism
only: cuda
Adds the parts of a row atomically, in the order in which the programs come: fp32 addition is not associative.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _sum(total, x, H, x_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + row * x_stride + columns, columns < H, other=0.0).to(tl.float32)
    tl.atomic_add(total + row, tl.sum(value * value, axis=0))


@triton.jit
def _scale(out, total, x, weight, H, x_stride, weight_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < H
    value = tl.load(x + row * x_stride + columns, inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns * weight_stride, inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.load(total + row), H * 1.0)
    scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    y = value * scale * gain
    tl.store(out + row * H + columns, y.to(tl.bfloat16), inside)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        T, H = x.shape
        out = torch.empty((T, H), dtype=x.dtype, device=x.device)
        if T > 0:
            grid = T, triton.cdiv(H, 128)
            total = torch.zeros(T, dtype=torch.float32, device=x.device)
            _sum[grid](total, x, H, x.stride(0), BLOCK=128, num_warps=1)
            strides = x.stride(0), weight.stride(0)
            _scale[grid](out, total, x, weight, H, *strides, self.eps, BLOCK=128, num_warps=1)
        return out
