import numpy as np
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _squares(s, x, H, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(s + r, tl.sum(v * v, 0))


@triton.jit
def _scale(y, x, f, H, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(y + r * H + c, (v * tl.load(f + r)).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = np.float32(eps)

    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        T, H = x.shape
        if T == 0:
            return y
        sums = torch.empty(T, dtype=torch.float32, device=x.device)
        B = triton.next_power_of_2(H)
        _squares[(T,)](sums, x, H, B=B)
        factors = 1.0 / np.sqrt(sums.cpu().numpy() + self.eps)
        _scale[(T,)](y, x, torch.from_numpy(factors).to(x.device), H, B=B)
        return y
