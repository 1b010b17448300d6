import itertools
import math
import operator

import torch
import triton
import triton.language as tl


@triton.jit
def gate_up(x, y, row_stride, F, n, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    at = x + (i // F) * row_stride + i % F
    g = tl.load(at, mask=ok, other=0.0).to(tl.float32)
    u = tl.load(at + F, mask=ok, other=0.0).to(tl.float32)
    tl.store(y + i, (g / (1.0 + tl.exp(-g)) * u).to(y.dtype.element_ty), mask=ok)


def dense_strides(shape):
    """Strides of a dense tensor, by products from the right."""
    return tuple(itertools.accumulate((1, *reversed(shape[1:])), operator.mul))[::-1]


def rows_of(x):
    lead = x.shape[:-1]
    if x.dim() == 2 and x.stride(1) == 1:
        return x
    if x.stride() == dense_strides(x.shape):
        return x.view(math.prod(lead), x.shape[-1])
    return x.reshape(torch.Size([lead.numel()]) + x.shape[-1:]).contiguous()


class Model(torch.nn.Module):
    def forward(self, x):
        flat = rows_of(x)
        features = flat.shape[-1] // 2
        shape = x.shape[:-1] + torch.Size((features,))
        assert operator.index(shape.numel()) * 2 == x.numel()
        out = torch.empty(shape, dtype=x.dtype, device=x.device)
        n = functools_reduce_mul(shape)
        if n:
            gate_up[(operator.floordiv(n + 1023, 1024),)](flat, out, flat.stride(0), features, n, BLOCK=1024)
        return out


def functools_reduce_mul(values):
    product = 1
    for value in values:
        product *= value
    return product
