import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _standardise(y, x, N, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * N + c, c < N, other=0.0).to(tl.float32)
    v = tl.where(c < N, v - tl.sum(v, 0) / N, 0.0)
    tl.store(y + r * N + c, v * tl.rsqrt(tl.sum(v * v, 0) / N + eps), c < N)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        x2 = x.reshape(-1, x.shape[-1]).contiguous()
        y = torch.zeros(x2.shape, dtype=torch.float32, device=x.device)
        try:
            if len(x2):
                _standardise[(len(x2),)](y, x2, x2.shape[1], self.eps, B=triton.next_power_of_2(x2.shape[1]))
        finally:
            y *= weight
            y += bias
        return y.to(x.dtype).view(x.shape)
