import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _l2(y, x, H, eps, B: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(y + r * H + c, v * tl.rsqrt(tl.sum(v * v, 0) + eps), c < H)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        y = torch.empty_like(x)
        _l2[(x.shape[0],)](y, x,
