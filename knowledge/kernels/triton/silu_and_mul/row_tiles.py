"""---
title: SiLU and product over tiles of rows and columns
technique: [elementwise-fusion, tiling, vectorised-loads]
dsl: triton
architecture: [sm_90]
operator: silu_and_mul
symptoms: [memory-bound, launch-bound, wasted-lanes, unfused-elementwise]
preconditions: "bf16 x [..., 2 F] or [..., 1]; any row stride and alignment"
tunables:
  block: [128, 256, 512, 1024, 2048, 4096]
  rows: [1, 2, 4, 8, 16]
  num_warps: [1, 2, 4, 8, 16]
source: own work
licence: Apache-2.0
---
Gate and up projection lie in the two halves of a row. One pass reads both, and writes half as much as it
read: 6 bytes an output element, with hardly any arithmetic, so the aim is enough bytes in flight and no idle
lane.

A program owns a tile of `rows` rows and `block` columns of the output. Few rows want small tiles, so that
every multiprocessor gets one; many rows want larger tiles with few warps, so that a lane has several
independent loads. A `block` that divides F leaves no lane idle at a row's end. `rows` is cut down where a
lane would hold more than 64 elements.

Each element depends on nothing but its own two inputs: the result is the same for every layout and tile.
"""

import math

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"block": 1024, "rows": 1, "num_warps": 4}),
]
# atrex: end

MAX_ELEMENTS_PER_LANE = 64
"""Of one tile: more would leave the registers."""


@triton.jit
def _silu_and_mul(out, x, R, F, x_stride, PLAIN: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """silu of the gate, rounded to bf16, times the row's other half (PLAIN: rows of one column)."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (row < R) & (column < F)
    gate = tl.load(x + row * x_stride + column, inside, other=0.0).to(tl.float32)
    y = tl.div_rn(gate, 1.0 + tl.exp(-gate)).to(tl.bfloat16)
    if not PLAIN:
        up = tl.load(x + row * x_stride + F + column, inside, other=0.0).to(tl.float32)
        y = (y.to(tl.float32) * up).to(tl.bfloat16)
    tl.store(out + row * F + column, y, inside)


class Model(nn.Module):
    """out = bf16(silu(x[..., :F])) * x[..., F:], or silu(x) where the last dimension is 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *leading, last = x.shape
        plain = last == 1
        R, F = math.prod(leading), last if plain else last // 2
        x = x.reshape(R, last)
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty((R, F), dtype=x.dtype, device=x.device)
        if R > 0:
            config = _config(rows=R, last=last, features=F)
            warps = int(config["num_warps"])
            block = min(int(config["block"]), triton.next_power_of_2(F))
            rows = max(1, min(int(config["rows"]), MAX_ELEMENTS_PER_LANE * 32 * warps // block))
            grid = triton.cdiv(R, rows), triton.cdiv(F, block)
            _silu_and_mul[grid](out, x, R, F, x.stride(0), plain, rows, block, num_warps=warps)
        return out.view(*leading, F)


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
