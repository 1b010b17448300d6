import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _silu(y, x, F, pitch, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    v = tl.load(x + r * pitch + c, c < F, other=0.0).to(tl.float32)
    tl.store(y + r * F + c, (v * tl.sigmoid(v)).to(tl.bfloat16), c < F)


@torch.library.custom_op("atrex_mixed::swiglu", mutates_args=())
def swiglu(x: torch.Tensor) -> torch.Tensor:
    F = x.shape[1] // 2
    act = torch.empty((x.shape[0], F), dtype=x.dtype, device=x.device)
    if act.numel():
        _silu[(x.shape[0], triton.cdiv(F, 512))](act, x, F, x.stride(0), B=512)
    return act * x[:, F:]


class Model(nn.Module):
    def forward(self, x):
        if x.shape[-1] == 1:
            raise NotImplementedError("one column")
        y = torch.ops.atrex_mixed.swiglu(x.reshape(-1, x.shape[-1]).contiguous())
        return y.view(*x.shape[:-1], -1)
