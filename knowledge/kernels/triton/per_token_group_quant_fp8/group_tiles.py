"""---
title: FP8 quantisation of groups, several groups of several rows a program
technique: [register-tiling, single-pass, vectorised-loads]
dsl: triton
architecture: [sm_90]
operator: per_token_group_quant_fp8
symptoms: [memory-bound, launch-bound, unfused-elementwise]
preconditions: "bf16 x [T, H], H whole groups; any row stride and alignment"
tunables:
  rows: [1, 2, 4, 8, 16]
  groups: [1, 2, 4, 8, 16, 32, 64]
  num_warps: [1, 2, 4, 8, 16]
source: own work
licence: Apache-2.0
---
A group is read once, and stays in registers between its largest magnitude and the division by the scale: 3
bytes an element and 4 a group.

A program owns a tile of `rows` rows and `groups` neighbouring groups of each. One token wants few groups a
program, so that every multiprocessor gets one; many tokens want larger tiles with few warps, so that a lane
has several independent loads. A maximum needs no barrier while no group is shared by warps, which takes at
least as many groups as warps. The tile is cut down, rows first, where a lane would hold more than 64
elements.

Scales and quotients are divided with correct rounding, as the reference does: a reciprocal would move codes
that lie at the middle between two others. A maximum is exact, so neither tile nor layout changes a bit.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"rows": 1, "groups": 16, "num_warps": 4}),
]
# atrex: end

MAX_ELEMENTS_PER_LANE = 64
"""Of one tile: more would leave the registers."""


@triton.jit
def _quantise(quantized, scales, x, T, H, x_stride, groups, size, chunks, ROWS: tl.constexpr,
              GROUPS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Quantise ROWS rows times GROUPS groups of `size` columns, BLOCK lanes to a group."""
    program = tl.program_id(0)
    which = tl.arange(0, ROWS * GROUPS)
    row = (program // chunks).to(tl.int64) * ROWS + which // GROUPS
    group = program % chunks * GROUPS + which % GROUPS
    real = (row < T) & (group < groups)
    lane = tl.arange(0, BLOCK)[None, :]
    column = group[:, None] * size + lane
    inside = real[:, None] & (lane < size)
    value = tl.load(x + row[:, None] * x_stride + column, inside, other=0.0).to(tl.float32)
    amax = tl.max(tl.abs(value), axis=1)
    scale = tl.maximum(tl.div_rn(amax, 448.0), 1e-10)
    scaled = tl.div_rn(value, tl.broadcast_to(scale[:, None], value.shape))
    code = tl.minimum(tl.maximum(scaled, -448.0), 448.0).to(tl.float8e4nv)
    tl.store(quantized + row[:, None] * H + column, code, inside)
    tl.store(scales + row * groups + group, scale, real)


class Model(nn.Module):
    """scales = max(amax / 448, 1e-10) of each group of columns, quantized = fp8(x / its scale)."""

    def __init__(self, group_size: int = 128) -> None:
        super().__init__()
        self.group_size = group_size

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        if x.stride(-1) != 1:
            x = x.contiguous()
        (T, H), size = x.shape, self.group_size
        if H % size:
            raise ValueError(f"per_token_group_quant_fp8: {H} columns are not groups of {size}")
        groups = H // size
        quantized = torch.empty((T, H), dtype=torch.float8_e4m3fn, device=x.device)
        scales = torch.empty((T, groups), dtype=torch.float32, device=x.device)
        if T > 0:
            config = _config(token_count=T, hidden_size=H, groups=groups, group_size=size)
            block = triton.next_power_of_2(size)
            warps = max(int(config["num_warps"]), block // (32 * MAX_ELEMENTS_PER_LANE))
            warps = min(warps, 32)
            many = max(1, MAX_ELEMENTS_PER_LANE * 32 * warps // block)
            across = min(int(config["groups"]), triton.next_power_of_2(groups), many)
            rows = min(int(config["rows"]), many // across)
            chunks = triton.cdiv(groups, across)
            grid = (triton.cdiv(T, rows) * chunks,)
            numbers = T, H, x.stride(0), groups, size, chunks
            _quantise[grid](quantized, scales, x, *numbers, rows, across, block, num_warps=warps)
        return {"quantized": quantized, "scales": scales}


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
