"""gate: none
One row a program: rows of up to 16384 stay in registers, longer ones are read twice.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _encode(value, inverse):
    scaled = value.to(tl.float32) * inverse
    return tl.minimum(tl.maximum(scaled, -448.0), 448.0).to(tl.float8e4nv)


@triton.jit
def _quantise(q, scale, x, H, x_stride, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    x += row * x_stride
    q += row * H
    largest = tl.zeros([BLOCK], tl.float32)
    if WHOLE:
        value = tl.load(x + lanes, lanes < H, other=0.0)
        largest = tl.abs(value.to(tl.float32))
    else:
        for start in tl.range(0, H, BLOCK):
            columns = start + lanes
            part = tl.load(x + columns, columns < H, other=0.0).to(tl.float32)
            largest = tl.maximum(largest, tl.abs(part))
    amax = tl.maximum(tl.max(largest, axis=0), 1e-12)
    step = tl.div_rn(amax, 448.0)
    inverse = tl.div_rn(1.0, step)
    tl.store(scale + row, step)
    if WHOLE:
        tl.store(q + lanes, _encode(value, inverse), lanes < H)
    else:
        for start in tl.range(0, H, BLOCK):
            columns = start + lanes
            part = tl.load(x + columns, columns < H, other=0.0)
            tl.store(q + columns, _encode(part, inverse), columns < H)


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if x.stride(-1) != 1:
            x = x.contiguous()
        T, H = x.shape
        q = torch.empty((T, H), dtype=torch.float8_e4m3fn, device=x.device)
        scale = torch.empty(T, dtype=torch.float32, device=x.device)
        if T > 0:
            whole = H <= 16384
            block = triton.next_power_of_2(H) if whole else 8192
            warps = min(16, max(1, block // 512))
            _quantise[(T,)](q, scale, x, H, x.stride(0), WHOLE=whole, BLOCK=block, num_warps=warps)
        return q, scale
