import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _ln_fwd(y, x, w, b, N, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * N + c, c < N, other=0.0).to(tl.float32)
    v = tl.where(c < N, v - tl.sum(v, 0) / N, 0.0)
    v *= tl.rsqrt(tl.sum(v * v, 0) / N + eps)
    v = v * tl.load(w + c, c < N, other=0.0).to(tl.float32) + tl.load(b + c, c < N, other=0.0).to(tl.float32)
    tl.store(y + r * N + c, v.to(tl.bfloat16), c < N)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        if not x.is_cuda:
            return torch.layer_norm(x, (x.shape[-1],), weight, bias, self.eps)
        x2 = x.reshape(-1, x.shape[-1]).contiguous()
        y = torch.empty_like(x2)
        if x2.shape[0]:
            N = x2.shape[1]
            _ln_fwd[(x2.shape[0],)](
                y, x2, weight.contiguous(), bias.contiguous(), N, self.eps, B=triton.next_power_of_2(N)
            )
        return y.reshape(x.shape)
