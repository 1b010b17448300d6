import torch
import triton
import triton.language as tl
from torch import nn


@torch.compile(dynamic=True)
def add(a, b):
    return a + b


@triton.jit
def _norm(y, x, w, H, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    g = tl.load(w + c, c < H, other=0.0).to(tl.float32)
    tl.store(y + r * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) / H + eps) * g).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        residual = add(x, residual)
        T, H = residual.shape
        out = torch.empty((T, H), dtype=x.dtype, device=x.device)
        if T:
            _norm[(T,)](
                out, residual.contiguous(), weight.contiguous(), H, self.eps, B=triton.next_power_of_2(H)
            )
        return {"out": out, "residual": residual}
