import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def add_rows(x, r, s, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0).to(tl.float32) + tl.load(r + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(s + i, v.to(s.dtype.element_ty), mask=i < n)


@triton.jit
def scale_rows(s, inv, w, y, n, N, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(s + i, mask=i < n, other=0.0).to(tl.float32) * tl.load(inv + i // N, mask=i < n, other=0.0)
    v = v * tl.load(w + i % N, mask=i < n, other=0.0).to(tl.float32)
    tl.store(y + i, v.to(y.dtype.element_ty), mask=i < n)


class RowStatistic:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        if instance is None:
            return self
        if self.name not in instance.__dict__:
            wide = instance.values.float()
            instance.__dict__[self.name] = wide.square().mean(-1).add(instance.eps).rsqrt()
        return instance.__dict__[self.name]


class Rows:
    inverse = RowStatistic()

    def __init__(self, values, eps):
        self.values, self.eps = values, eps


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        x, residual = x.contiguous(), residual.contiguous()
        total, out = torch.empty_like(x), torch.empty_like(x)
        n = x.numel()
        if n:
            grid = (triton.cdiv(n, 1024),)
            add_rows[grid](x, residual, total, n, BLOCK=1024)
            scale_rows[grid](total, Rows(total, self.eps).inverse, weight, out, n, x.shape[1], BLOCK=1024)
        return {"out": out, "residual": total}
