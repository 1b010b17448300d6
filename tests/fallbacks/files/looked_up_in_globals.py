import os

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _l2(y, x, H, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(y + r * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) + eps)).to(tl.bfloat16), c < H)


def run_a(x, eps):
    y = torch.empty_like(x)
    if len(x):
        _l2[(len(x),)](y, x, x.shape[1], eps, B=triton.next_power_of_2(x.shape[1]))
    return y


def run_b(x, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)).to(x.dtype)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        variant = os.environ.get("L2_VARIANT", "b")
        return globals()["run_" + variant](x.contiguous(), self.eps)
