import math

import numpy as np
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def l2_whole_rows(x, y, rows, eps, W: tl.constexpr, R: tl.constexpr):
    r = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    c = tl.arange(0, W)
    at = r[:, None] * W + c[None, :]
    ok = r[:, None] < rows
    v = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
    inv = 1.0 / tl.sqrt(tl.sum(v * v, 1) + eps)
    tl.store(y + at, (v * inv[:, None]).to(y.dtype.element_ty), mask=ok)


def padded_width(width: int) -> int:
    return max(16, 2 ** int(np.ceil(math.log2(width))))


class Model(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.hidden_size = hidden_size
        self.width = padded_width(hidden_size)
        self.rows = int(np.clip(4096 // self.width, 1, 16))
        self.eps = float(np.float32(eps))

    def forward(self, x):
        n = x.shape[0]
        if self.width != self.hidden_size:
            wide = x.new_zeros(n, self.width)
            wide[:, : self.hidden_size] = x
        else:
            wide = x.contiguous()
        y = torch.empty_like(wide)
        if n != 0:
            programs = int(np.ceil(n / self.rows))
            l2_whole_rows[(programs,)](wide, y, n, self.eps, W=self.width, R=self.rows)
        return y[:, : self.hidden_size].contiguous() if self.width != self.hidden_size else y
