import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _sum_kernel(out, x, K, H, f, B: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros([B], tl.float32)
    for k in range(K):
        acc += tl.load(x + (t * K + k) * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + t * H + c, (acc * f).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0):
        super().__init__()
        self.f = routed_scaling_factor

    def forward_triton(self, expert_outputs):
        T, K, H = expert_outputs.shape
        out = torch.empty((T, H), dtype=expert_outputs.dtype, device=expert_outputs.device)
        _sum_kernel[(T, triton.cdiv(H, 512))](out, expert_outputs.contiguous(), K, H, self.f, B=512)
        return out

    def forward_native(self, expert_outputs):
        wide = torch.sum(expert_outputs, dim=1, dtype=torch.float32)
        return (wide * self.f).to(expert_outputs.dtype)

    def forward(self, expert_outputs):
        return self.forward_native(expert_outputs)
