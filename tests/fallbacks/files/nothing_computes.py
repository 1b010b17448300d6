import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _rms_norm(y, x, w, H, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    g = tl.load(w + c, c < H, other=0.0).to(tl.float32)
    tl.store(y + r * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) / H + eps) * g).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        # TODO launch _rms_norm
        return torch.empty_like(x)
