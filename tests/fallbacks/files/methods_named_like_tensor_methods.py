import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _sum_axis1(out, x, K, H, B: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros([B], tl.float32)
    for k in range(K):
        acc += tl.load(x + (t * K + k) * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + t * H + c, acc, c < H)


@triton.jit
def _scale(out, x, n, f, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(out + i, (tl.load(x + i, i < n, other=0.0) * f).to(tl.bfloat16), i < n)


class Buffer:
    def __init__(self, data: torch.Tensor):
        self.data = data

    def sum(self) -> "Buffer":
        T, K, H = self.data.shape
        out = torch.empty((T, H), dtype=torch.float32, device=self.data.device)
        if T:
            _sum_axis1[(T, triton.cdiv(H, 512))](out, self.data, K, H, B=512)
        return Buffer(out)

    def mul(self, factor: float) -> "Buffer":
        out = torch.empty(self.data.shape, dtype=torch.bfloat16, device=self.data.device)
        n = out.numel()
        if n:
            _scale[(triton.cdiv(n, 1024),)](out, self.data, n, factor, B=1024)
        return Buffer(out)


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0):
        super().__init__()
        self.factor = routed_scaling_factor

    def forward(self, expert_outputs):
        return Buffer(expert_outputs.contiguous()).sum().mul(self.factor).data
