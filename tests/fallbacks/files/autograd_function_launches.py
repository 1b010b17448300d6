import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _fwd(y, x, F, sx, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    for k in range(0, F, B):
        c = k + tl.arange(0, B)
        g = tl.load(x + r * sx + c, c < F, other=0.0).to(tl.float32)
        u = tl.load(x + r * sx + F + c, c < F, other=0.0)
        act = (g * tl.sigmoid(g)).to(tl.bfloat16)
        tl.store(y + r * F + c, act * u, c < F)


class SwiGLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        rows, width = x.shape
        y = torch.empty((rows, width // 2), dtype=x.dtype, device=x.device)
        if rows:
            _fwd[(rows,)](y, x, width // 2, x.stride(0), B=1024, num_warps=4)
        return y

    @staticmethod
    def backward(ctx, grad):
        raise NotImplementedError("inference only")


class Model(nn.Module):
    def forward(self, x):
        if x.shape[-1] == 1:
            raise NotImplementedError("a last dimension of 1")
        flat = x.flatten(0, -2).contiguous() if x.dim() > 1 else x[None]
        return SwiGLU.apply(flat).view(*x.shape[:-1], -1)
