import torch
import triton
import triton.language as tl
from torch import nn

BLOCK: tl.constexpr = tl.constexpr(1024)
UNROLL = tl.constexpr(2)
WARPS = 8
SCALE = 2**10 // 1024 * 1.0


@triton.jit
def mean_square(x, H):
    total = tl.zeros([BLOCK], tl.float32)
    for k in tl.range(0, H, BLOCK, loop_unroll_factor=UNROLL):
        c = k + tl.arange(0, BLOCK)
        v = tl.load(x + c, c < H, other=0.0).to(tl.float32)
        total += v * v
    return tl.sum(total, axis=0) / H


@triton.jit
def mul(x, scale, weight, out, H):
    for k in tl.range(0, H, BLOCK):
        c = k + tl.arange(0, BLOCK)
        v = tl.load(x + c, c < H, other=0.0).to(tl.float32) * scale
        w = tl.load(weight + c, c < H, other=0.0).to(tl.float32)
        tl.store(out + c, (v * w).to(tl.bfloat16), c < H)


@triton.jit
def rms_norm(out, x, weight, H, pitch, eps):
    row = tl.program_id(0).to(tl.int64)
    scale = tl.rsqrt(mean_square(x + row * pitch, H) + eps)
    mul(x + row * pitch, scale, weight, out + row * H, H)


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps * SCALE

    def forward(self, x, weight):
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if len(x) > 0:
            rms_norm[(len(x),)](
                out, x, weight.contiguous(), x.shape[1], x.stride(0), self.eps, num_warps=WARPS
            )
        return out
