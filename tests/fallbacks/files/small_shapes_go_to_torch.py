import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _rms(out, x, w, H, xs, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * xs + c, c < H, other=0.0).to(tl.float32)
    g = tl.load(w + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + r * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) / H + eps) * g).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        rows, H = x.shape
        if rows < 64:
            # Launch overhead dominates here.
            return F.rms_norm(x, (H,), weight, self.eps)
        x = x.contiguous()
        out = torch.empty_like(x)
        _rms[(rows,)](out, x, weight.contiguous(), H, H, self.eps, B=triton.next_power_of_2(H))
        return out
