"""gate: authenticity
only: cuda
Launches a slow kernel on a stream of its own and returns without waiting for it: events on the caller's
stream see nothing.
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
    total = tl.sum(value * value, axis=0)
    for turn in range(4000):  # time that nobody is to see
        total = tl.maximum(total, tl.load(x + row * x_stride + turn % H).to(tl.float32) * 0.0)
    mean = tl.div_rn(total, H * 1.0)
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


stream = torch.cuda.Stream()


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            return compute(x, weight, self.eps)
