import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _ln(y, x, w, b, N, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    k = c < N
    v = tl.load(x + r * N + c, k, other=0.0).to(tl.float32)
    d = tl.where(k, v - tl.sum(v, 0) / N, 0.0)
    d *= tl.rsqrt(tl.sum(d * d, 0) / N + eps)
    g = tl.load(w + c, k, other=0.0).to(tl.float32)
    h = tl.load(b + c, k, other=0.0).to(tl.float32)
    tl.store(y + r * N + c, (d * g + h).to(tl.bfloat16), k)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (x, weight, bias))
        if needs_grad:
            return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        y = torch.empty_like(flat)
        if len(flat):
            N = flat.shape[1]
            _ln[(len(flat),)](
                y, flat, weight.contiguous(), bias.contiguous(), N, self.eps, BLOCK=triton.next_power_of_2(N)
            )
        return y.view(x.shape)
