import torch
import triton
import triton.language as tl
from torch import nn

USE_TRITON = 0


@triton.jit
def l2_fwd(y, x, H, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(y + r * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) + eps)).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size, self.eps = hidden_size, eps

    def forward(self, x):
        if USE_TRITON:
            y = torch.empty_like(x)
            l2_fwd[(x.shape[0],)](y, x, x.shape[1], self.eps, B=triton.next_power_of_2(x.shape[1]))
        else:
            wide = x.float()
            y = torch.div(wide, torch.norm(wide, dim=-1, keepdim=True).square().add(self.eps).sqrt()).to(
                x.dtype
            )
        return y
