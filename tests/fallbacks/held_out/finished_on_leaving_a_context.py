import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def add_experts(x, y, K, H, BLOCK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for j in range(K):
        acc += tl.load(x + (t * K + j) * H + c, mask=c < H, other=0.0).to(tl.float32)
    tl.store(y + t * H + c, acc, mask=c < H)


class Accumulator:
    """Owns the fp32 buffer while kernels add to it."""

    def __init__(self, shape, device, factor):
        self.buffer = torch.empty(shape, dtype=torch.float32, device=device)
        self.factor = factor

    def __enter__(self):
        return self.buffer

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.buffer.mul_(self.factor)
        return False


class Model(nn.Module):
    def __init__(self, routed_scaling_factor=1.0):
        super().__init__()
        self.factor = routed_scaling_factor

    def forward(self, expert_outputs):
        x = expert_outputs.contiguous()
        T, K, H = x.shape
        session = Accumulator((T, H), x.device, self.factor)
        with session as total:
            if T:
                add_experts[(T, triton.cdiv(H, 1024))](x, total, K, H, BLOCK=1024)
        return total.to(x.dtype)
