import torch
import triton
import triton.language as tl
from torch import nn

LIB = torch.library.Library("atrex_gated", "FRAGMENT")
LIB.define("silu_and_mul(Tensor x) -> Tensor")


@triton.jit
def _silu_and_mul(y, x, F, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    for k in range(0, F, B):
        c = k + tl.arange(0, B)
        g = tl.load(x + r * 2 * F + c, c < F, other=0.0).to(tl.float32)
        u = tl.load(x + r * 2 * F + F + c, c < F, other=0.0)
        tl.store(y + r * F + c, (g / (1.0 + tl.exp(-g))).to(tl.bfloat16) * u, c < F)


def _impl(x):
    rows, F = x.shape[0], x.shape[1] // 2
    y = torch.empty((rows, F), dtype=x.dtype, device=x.device)
    if rows:
        _silu_and_mul[(rows,)](y, x, F, B=1024)
    return y


LIB.impl("silu_and_mul", _impl, "CompositeExplicitAutograd")


class Model(nn.Module):
    def forward(self, x):
        if x.shape[-1] == 1:
            raise NotImplementedError("no gate")
        y = torch.ops.atrex_gated.silu_and_mul.default(x.reshape(-1, x.shape[-1]).contiguous())
        return y.view(*x.shape[:-1], y.shape[-1])
