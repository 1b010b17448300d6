import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _normalise_rows(dst, src, width, pitch, eps, N: tl.constexpr):
    pid = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, N)
    vals = tl.load(src + pid * pitch + lane, lane < width, other=0.0).to(tl.float32)
    norm = tl.sqrt_rn(tl.sum(vals * vals, 0) + eps)
    tl.store(dst + pid * width + lane, tl.div_rn(vals, norm + tl.zeros([N], tl.float32)), lane < width)


class Model(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.block = triton.next_power_of_2(hidden_size)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        tokens, width = x.size()
        if tokens == 0:
            return out
        grid = (tokens, 1, 1)
        launcher = _normalise_rows[grid]
        launcher(out, x, width, x.stride(0), self.eps, N=self.block)
        return out
