import os

import torch
import triton
import triton.language as tl
from torch import nn

EAGER = os.environ.get("MOE_SUM_EAGER", "0") == "1"


@triton.jit
def _reduce(out, x, K, H, f, B: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros([B], tl.float32)
    for k in range(K):
        acc += tl.load(x + (t * K + k) * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + t * H + c, (acc * f).to(tl.bfloat16), c < H)


def triton_sum(x, f):
    T, K, H = x.shape
    out = x.new_empty((T, H))
    if T:
        _reduce[(T, triton.cdiv(H, 1024))](out, x, K, H, f, B=1024)
    return out


def eager_sum(x, f):
    return (x.float().sum(dim=1) * f).to(x.dtype)


class Model(nn.Module):
    def __init__(self, routed_scaling_factor=1.0):
        super().__init__()
        self.f = routed_scaling_factor

    def forward(self, expert_outputs):
        implementation = eager_sum if EAGER else triton_sum
        return implementation(expert_outputs.contiguous(), self.f)
