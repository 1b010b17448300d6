import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _kernel(y, x, w, n, sx, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    j = tl.arange(0, BLOCK)
    a = tl.load(x + i * sx + j, mask=j < n, other=0.0).to(tl.float32)
    b = tl.load(w + j, mask=j < n, other=0.0).to(tl.float32)
    a *= tl.rsqrt(tl.sum(a * a) / n + eps)
    tl.store(y + i * n + j, (a * b).to(tl.bfloat16), mask=j < n)


launch = _kernel
next_pow2 = triton.next_power_of_2


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x, weight = map(torch.Tensor.contiguous, (x, weight))
        y = torch.empty_like(x)
        m, n = x.shape
        if m != 0:
            launch[m, 1](y, x, weight, n, n, self.eps, BLOCK=next_pow2(n))
        return y
