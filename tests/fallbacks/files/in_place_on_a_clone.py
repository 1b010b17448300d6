import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _add_norm_(x, residual, weight, H, eps, BLOCK: tl.constexpr):
    """x becomes the normalised sum, residual the sum; both packed."""
    base = tl.program_id(0).to(tl.int64) * H
    col = tl.arange(0, BLOCK)
    live = col < H
    total = tl.load(x + base + col, live, other=0.0).to(tl.float32)
    total += tl.load(residual + base + col, live, other=0.0).to(tl.float32)
    total = total.to(tl.bfloat16)
    tl.store(residual + base + col, total, live)
    wide = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / H + eps)
    gain = tl.load(weight + col, live, other=0.0).to(tl.float32)
    tl.store(x + base + col, (wide * scale * gain).to(tl.bfloat16), live)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        # The kernel works in place, the operator must not: give it copies.
        out = x.clone(memory_format=torch.contiguous_format)
        summed = residual.clone(memory_format=torch.contiguous_format)
        T, H = out.shape
        if T > 0:
            _add_norm_[(T,)](out, summed, weight.contiguous(), H, self.eps, triton.next_power_of_2(H))
        return {"out": out, "residual": summed}
