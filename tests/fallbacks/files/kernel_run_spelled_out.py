import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _norm(out, x, weight, H, x_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    v = tl.load(x + row * x_stride + col, col < H, other=0.0).to(tl.float32)
    w = tl.load(weight + col, col < H, other=0.0).to(tl.float32)
    tl.store(out + row * H + col, (v * tl.rsqrt(tl.sum(v * v, 0) / H + eps) * w).to(tl.bfloat16), col < H)


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        x, weight = x.contiguous(), weight.contiguous()
        T, H = x.shape
        out = torch.empty_like(x)
        if T > 0:
            args = out, x, weight, H, x.stride(0), self.eps
            _norm.run(*args, grid=(T, 1, 1), warmup=False, BLOCK=triton.next_power_of_2(H), num_warps=4)
        return out
