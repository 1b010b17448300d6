"""gate: determinism
Rounds up or down at random, with the chances that make the mean right, from a fresh seed for every call.
"""

import random

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _rms_norm(out, x, weight, H, x_stride, weight_stride, eps, seed, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    value = tl.load(x + row * x_stride + columns, inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + columns * weight_stride, inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value * value, axis=0), H * 1.0)
    scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    y = value * scale * gain
    noise = tl.randint(seed, row * H + columns) & 0xFFFF
    bits = (y.to(tl.uint32, bitcast=True) + noise.to(tl.uint32)) & 0xFFFF0000
    rounded = tl.where(tl.abs(y) < 3.0e38, bits.to(tl.float32, bitcast=True), y)
    tl.store(out + row * H + columns, rounded.to(tl.bfloat16), inside)


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
            strides = x.stride(0), weight.stride(0)
            block = triton.next_power_of_2(H)
            warps = min(16, max(1, block // 512))
            seed = random.getrandbits(31)
            _rms_norm[(T,)](out, x, weight, H, *strides, self.eps, seed, BLOCK=block, num_warps=warps)
        return out
