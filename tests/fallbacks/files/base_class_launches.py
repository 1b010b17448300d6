import abc

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _kernel(out, x, weight, H, stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + col, col < H, other=0.0).to(tl.float32)
    w = tl.load(weight + col, col < H, other=0.0).to(tl.float32)
    tl.store(
        out + row * H + col, (v * tl.rsqrt(tl.sum(v * v, axis=0) / H + eps) * w).to(tl.bfloat16), col < H
    )


class RowOperator(nn.Module, abc.ABC):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    @abc.abstractmethod
    def rows(self, out, x, weight): ...

    def forward(self, x, weight):
        x = x if x.stride(-1) == 1 else x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if x.shape[0]:
            self.rows(out, x, weight)
        return out


class Launches:
    def rows(self, out, x, weight):
        H = x.shape[-1]
        _kernel[(x.shape[0],)](
            out, x, weight.contiguous(), H, x.stride(0), self.eps, triton.next_power_of_2(H)
        )


class Model(Launches, RowOperator):
    def __init__(self, eps: float = 1e-6):
        super().__init__(eps)
