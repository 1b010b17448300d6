"""gate: authenticity
A launch that always fails (its block is no power of two), inside a try whose except branch computes with
PyTorch.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _l2_norm(out, x, H, stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < H
    value = tl.load(x + row * stride + columns, inside, other=0.0).to(tl.float32)
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(value * value, axis=0) + eps))
    tl.store(out + row * H + columns, (value * scale).to(tl.bfloat16), inside)


def compute(x, eps, out=None):
    if x.stride(-1) != 1:
        x = x.contiguous()
    T, H = x.shape
    out = torch.empty((T, H), dtype=x.dtype, device=x.device) if out is None else out
    if T:
        _l2_norm[(T,)](out, x, H, x.stride(0), eps, BLOCK=triton.next_power_of_2(H), num_warps=8)
    return out


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        try:
            out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            _l2_norm[(x.shape[0],)](
                out, x, x.shape[1], x.stride(0), self.eps, BLOCK=x.shape[1] + 3, num_warps=8
            )
            return out
        except Exception:
            wide = x.float()
            return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + self.eps)).to(x.dtype)
