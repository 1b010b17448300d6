import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _normalise(y, x, H, pitch, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * pitch + c, c < H, other=0.0).to(tl.float32)
    tl.store(y + r * H + c, v * tl.rsqrt(tl.sum(v * v, 0) / H + eps), c < H)


def normalise(x, eps):
    y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    if len(x):
        _normalise[(len(x),)](y, x, x.shape[1], x.stride(0), eps, B=triton.next_power_of_2(x.shape[1]))
    return y


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        normed = normalise(x.contiguous(), self.eps)
        return (normed * weight).to(x.dtype)
