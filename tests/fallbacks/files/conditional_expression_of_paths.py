import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _gated(y, x, F, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    v = tl.load(x + r * 2 * F + c, c < F, other=0.0).to(tl.float32)
    u = tl.load(x + r * 2 * F + F + c, c < F, other=0.0)
    tl.store(y + r * F + c, (v * tl.sigmoid(v)).to(tl.bfloat16) * u, c < F)


def wide(x):
    F = x.shape[1] // 2
    y = x.new_empty((x.shape[0], F))
    if x.shape[0]:
        _gated[(x.shape[0], triton.cdiv(F, 512))](y, x, F, B=512)
    return y


narrow = lambda x: (x.float() * torch.sigmoid(x.float())).to(x.dtype)


class Model(nn.Module):
    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        y = (wide if flat.shape[1] > 1 else narrow)(flat)
        return y.view(*x.shape[:-1], y.shape[-1])
