import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rms(x, w, y, N, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + r * N + c, mask=c < N, other=0.0).to(tl.float32)
    v = v * tl.rsqrt(tl.sum(v * v, 0) / N + eps) * tl.load(w + c, mask=c < N, other=0.0).to(tl.float32)
    tl.store(y + r * N + c, v.to(y.dtype.element_ty), mask=c < N)


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        y = torch.empty_like(x)
<<<<<<< HEAD
        rms[(len(x),)](x, weight, y, x.shape[1], self.eps, BLOCK=1024)
=======
        rms[(len(x),)](x, weight, y, x.shape[1], self.eps, BLOCK=triton.next_power_of_2(x.shape[1]))
>>>>>>> tuned
        return y
