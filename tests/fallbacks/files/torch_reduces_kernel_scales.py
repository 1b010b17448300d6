import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def scale_rows(out, x, rstd, weight, H, total, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < total
    v = tl.load(x + i, live, other=0.0).to(tl.float32)
    v *= tl.load(rstd + i // H, live, other=0.0)
    v *= tl.load(weight + i % H, live, other=0.0).to(tl.float32)
    tl.store(out + i, v.to(tl.bfloat16), live)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        rstd = x.to(torch.float32).pow(2).mean(dim=-1).add_(self.eps).rsqrt_()
        out = torch.empty_like(x)
        if out.numel():
            grid = lambda meta: (triton.cdiv(out.numel(), meta["BLOCK"]),)
            scale_rows[grid](out, x, rstd, weight.contiguous(), x.shape[1], out.numel(), BLOCK=1024)
        return out
