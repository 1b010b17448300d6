import torch
import torch.nn as nn
import torch.nn.functional as F

try:
    import triton
    import triton.language as tl

    HAS_TRITON = True
except ImportError:
    HAS_TRITON = False

if HAS_TRITON:

    @triton.jit
    def _silu_and_mul_kernel(y, x, d, B: tl.constexpr):
        r = tl.program_id(0).to(tl.int64)
        c = tl.program_id(1) * B + tl.arange(0, B)
        g = tl.load(x + r * 2 * d + c, c < d, other=0.0).to(tl.float32)
        u = tl.load(x + r * 2 * d + d + c, c < d, other=0.0)
        tl.store(y + r * d + c, (g / (1.0 + tl.exp(-g))).to(tl.bfloat16) * u, c < d)


def silu_and_mul(x):
    d = x.shape[1] // 2
    if HAS_TRITON:
        y = torch.empty((x.shape[0], d), dtype=x.dtype, device=x.device)
        if x.shape[0]:
            _silu_and_mul_kernel[(x.shape[0], triton.cdiv(d, 512))](y, x, d, B=512)
        return y
    gate, up = x[:, :d], x[:, d:]
    return F.silu(gate.float()).to(x.dtype) * up


class Model(nn.Module):
    def forward(self, x):
        if x.shape[-1] == 1:
            raise NotImplementedError("one column")
        y = silu_and_mul(x.reshape(-1, x.shape[-1]).contiguous())
        return y.view(*x.shape[:-1], y.shape[-1])
