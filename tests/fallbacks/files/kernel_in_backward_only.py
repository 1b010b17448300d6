import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _l2_bwd(dx, dy, y, scale, H, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    g = tl.load(dy + r * H + c, c < H, other=0.0).to(tl.float32)
    v = tl.load(y + r * H + c, c < H, other=0.0).to(tl.float32)
    s = tl.load(scale + r)
    tl.store(dx + r * H + c, ((g - v * tl.sum(g * v, 0)) * s).to(tl.bfloat16), c < H)


class L2(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        wide = x.float()
        scale = (wide.square().sum(-1, keepdim=True) + eps).rsqrt()
        y = (wide * scale).to(x.dtype)
        ctx.save_for_backward(y, scale)
        return y

    @staticmethod
    def backward(ctx, dy):
        y, scale = ctx.saved_tensors
        dx = torch.empty_like(y)
        H = y.shape[1]
        _l2_bwd[(y.shape[0],)](dx, dy.contiguous(), y, scale, H, B=triton.next_power_of_2(H))
        return dx, None


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return L2.apply(x, self.eps)
