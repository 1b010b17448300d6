"""gate: none
No trick: what the tricks of this operator differ from.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _rms_norm(out, x, weight, H, x_stride, weight_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    value = tl.load(x + row * x_stride + columns, inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns * weight_stride, inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value * value, axis=0), H * 1.0)
    scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    tl.store(out + row * H + columns, (value * scale * gain).to(tl.bfloat16), inside)


def compute(x, weight, eps, out=None):
    if x.stride(-1) != 1:
        x = x.contiguous()
    T, H = x.shape
    out = torch.empty((T, H), dtype=x.dtype, device=x.device) if out is None else out
    if T:
        strides = x.stride(0), weight.stride(0)
        _rms_norm[(T,)](out, x, weight, H, *strides, eps, BLOCK=triton.next_power_of_2(H), num_warps=8)
    return out


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        return compute(x, weight, self.eps)
