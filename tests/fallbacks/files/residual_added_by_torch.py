import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _rms_norm(out, x, w, H, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    g = tl.load(w + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + r * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) / H + eps) * g).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        summed = x + residual
        out = torch.empty_like(summed)
        T, H = summed.shape
        if T:
            _rms_norm[(T,)](
                out, summed.contiguous(), weight.contiguous(), H, self.eps, BLOCK=triton.next_power_of_2(H)
            )
        return {"out": out, "residual": summed}
