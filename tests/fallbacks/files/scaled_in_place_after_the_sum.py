import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _sum_experts(out, x, K, H, B: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros([B], tl.float32)
    for k in range(K):
        acc += tl.load(x + (t * K + k) * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + t * H + c, acc, c < H)


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0):
        super().__init__()
        self.routed_scaling_factor = routed_scaling_factor

    def forward(self, expert_outputs):
        x = expert_outputs.contiguous()
        T, K, H = x.shape
        total = torch.empty((T, H), dtype=torch.float32, device=x.device)
        if T:
            _sum_experts[(T, triton.cdiv(H, 512))](total, x, K, H, B=512)
        total.mul_(self.routed_scaling_factor)
        return total.to(x.dtype)
