import functools

import torch
import triton
import triton.language as tl
from torch import nn


def refuse(condition, message):
    if condition:
        raise ValueError(message)


def timed(label):
    def decorate(function):
        @functools.wraps(function)
        def inner(*args, **kwargs):
            inner.calls += 1
            return function(*args, **kwargs)

        inner.calls, inner.label = 0, label
        return inner

    return decorate


@triton.jit
def _quant(q, s, x, G, pitch, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    row, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    lane = tl.arange(0, BLOCK)
    v = tl.load(x + row * pitch + g * SIZE + lane, lane < SIZE, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(v), 0) / 448.0, 1e-10)
    v = tl.minimum(tl.maximum(v / scale, -448.0), 448.0)
    tl.store(q + (row * G + g) * SIZE + lane, v.to(q.dtype.element_ty), lane < SIZE)
    tl.store(s + row * G + g, scale)


@timed("quantise")
@torch.inference_mode()
def quantise(x, size):
    T, H = x.shape
    groups, remainder = divmod(H, size)
    refuse(remainder, "ragged groups")
    outputs = {
        "quantized": torch.empty((T, H), dtype=torch.float8_e4m3fn, device=x.device),
        "scales": torch.empty((T, groups), dtype=torch.float32, device=x.device),
    }
    meta = {"SIZE": size, "BLOCK": triton.next_power_of_2(size), "num_warps": 1}
    if T:
        _quant[(T, groups)](*outputs.values(), x, groups, x.stride(0), **meta)
    return outputs


class Model(nn.Module):
    def __init__(self, group_size: int = 128):
        super().__init__()
        self.group_size = group_size

    def forward(self, x):
        return quantise(x if x.stride(-1) == 1 else x.contiguous(), self.group_size)
