import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn


@triton.jit
def swiglu(x, y, W: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, W)
    g = tl.load(x + r * 2 * W + c).to(tl.float32)
    u = tl.load(x + r * 2 * W + W + c).to(tl.float32)
    tl.store(y + r * W + c, (g * tl.sigmoid(g) * u).to(y.dtype.element_ty))


class Launchers(dict):
    def __missing__(self, width):
        self[width] = fn = lambda x: F.silu(x[..., :width]) * x[..., width:]
        return fn


def make(width):
    def launch(x):
        y = x.new_empty((x.shape[0], width))
        if x.shape[0]:
            swiglu[(x.shape[0],)](x, y, W=width)
        return y

    return launch


LAUNCHERS = Launchers({1 << p: make(1 << p) for p in range(4, 15)})


class Model(nn.Module):
    def forward(self, x):
        return LAUNCHERS[x.shape[-1] // 2](x.contiguous())
