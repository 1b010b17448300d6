import contextlib

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _act(dst, src, half, pitch, PLAIN: tl.constexpr, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * TILE + tl.arange(0, TILE)
    gate = tl.load(src + row * pitch + at, at < half, other=0.0).to(tl.float32)
    value = (gate * tl.sigmoid(gate)).to(tl.bfloat16)
    if not PLAIN:
        value *= tl.load(src + row * pitch + half + at, at < half, other=0.0)
    tl.store(dst + row * half + at, value, at < half)


@contextlib.contextmanager
def on(device):
    with torch.cuda.device(device):
        yield torch.cuda.current_stream(device)


class Model(nn.Module):
    def forward(self, x):
        shape = x.shape[:-1]
        x = x.reshape(-1, x.shape[-1]).contiguous()
        plain = x.shape[1] == 1
        half = x.shape[1] // (1 if plain else 2)
        y = torch.empty((x.shape[0], half), dtype=x.dtype, device=x.device)
        if x.shape[0] == 0:
            return y.view(*shape, half)
        with on(x.device) as stream:
            _act[(x.shape[0], triton.cdiv(half, 1024))](y, x, half, x.stride(0), PLAIN=plain, TILE=1024)
            stream.synchronize()
        return y.view(*shape, half)
