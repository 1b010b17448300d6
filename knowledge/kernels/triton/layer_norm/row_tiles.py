"""---
title: LayerNorm in register-resident row tiles, variance from centred values
technique: [register-tiling, chunked-rows, two-pass-variance]
dsl: triton
architecture: [sm_90]
operator: layer_norm
symptoms: [launch-bound, memory-bound, wasted-lanes, cross-warp-barrier, cancellation]
preconditions: "bf16 x [..., H], weight and bias [H]; any row stride and alignment"
tunables:
  block: [128, 256, 512, 1024, 2048, 4096, 8192]
  rows: [1, 2, 4, 8, 16]
  num_warps: [1, 2, 4, 8, 16]
source: own work
licence: Apache-2.0
---
Mean and variance are two sums, the second over x - mean: E[x^2] - E[x]^2 would cancel where the mean is
large. Both are taken from registers, so x is read from memory once.

A program owns `rows` rows. A row is cut into chunks of `block` columns rather than padded to the next power
of two: 1152 is 9 chunks of 128, where padding would idle almost half of the lanes. The chunks are added lane
by lane first, so each of the two sums costs one reduction across lanes. Short rows want several `rows` a
program; long rows want more warps. Rows that the registers do not hold are read three times, `block` columns
at a time.

The order of a sum depends on `block` and on how many warps share a row. It never depends on the alignment or
the strides of the inputs: where the output's own alignment does not settle which lane holds what, the
compiler is told nothing about them.
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
"""Of a resident tile: more would leave the registers."""
MAX_CHUNKS = 16
"""Of a resident row: they are unrolled, so more of them cost compile time."""


@triton.jit
def _reciprocal_root(squares, H, eps):
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, H * 1.0) + eps))


def _resident(out, x, weight, bias, R, H, x_stride, w_stride, b_stride, eps, ROWS: tl.constexpr,
              BLOCK: tl.constexpr, CHUNKS: tl.constexpr):  # fmt: skip
    """Normalise ROWS rows, held in registers as CHUNKS chunks of BLOCK columns."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :] + tl.zeros([ROWS, 1], tl.int32)
    chunks = ()
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for i in tl.static_range(CHUNKS):
        at = column + i * BLOCK
        narrow = tl.load(x + row * x_stride + at, (row < R) & (at < H), other=0.0)
        chunks += (narrow,)
        total += narrow.to(tl.float32)
    mean = tl.div_rn(tl.sum(total, axis=1, keep_dims=True), H * 1.0)
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for i in tl.static_range(CHUNKS):
        centred = tl.where(column + i * BLOCK < H, chunks[i].to(tl.float32) - mean, 0.0)
        squares += centred * centred
    scale = _reciprocal_root(tl.sum(squares, axis=1, keep_dims=True), H, eps)
    for i in tl.static_range(CHUNKS):
        at = column + i * BLOCK
        gain = tl.load(weight + at * w_stride, at < H, other=0.0).to(tl.float32)
        shift = tl.load(bias + at * b_stride, at < H, other=0.0).to(tl.float32)
        y = (chunks[i].to(tl.float32) - mean) * scale * gain + shift
        tl.store(out + row * H + at, y.to(tl.bfloat16), (row < R) & (at < H))


def _streamed(out, x, weight, bias, H, x_stride, w_stride, b_stride, eps, BLOCK: tl.constexpr):
    """Normalise one row too long for the registers: read once for each sum, and to scale it."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, H, BLOCK):
        column = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * x_stride + column, column < H, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(total, axis=0), H * 1.0)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, H, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * x_stride + column, column < H, other=0.0).to(tl.float32)
        centred = tl.where(column < H, value - mean, 0.0)
        squares += centred * centred
    scale = _reciprocal_root(tl.sum(squares, axis=0), H, eps)
    for start in tl.range(0, H, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < H
        value = tl.load(x + row * x_stride + column, inside, other=0.0).to(tl.float32)
        gain = tl.load(weight + column * w_stride, inside, other=0.0).to(tl.float32)
        shift = tl.load(bias + column * b_stride, inside, other=0.0).to(tl.float32)
        y = (value - mean) * scale * gain + shift
        tl.store(out + row * H + column, y.to(tl.bfloat16), inside)


# The compiler picks lanes, and so the order of a sum, from the alignments that it is told of. Where H is a
# multiple of 16 the output's settles them; elsewhere x must not seem aligned in one layout only.
_UNTOLD = ["x", "weight", "bias", "x_stride", "w_stride", "b_stride"]
_RESIDENT = {True: triton.jit(_resident), False: triton.jit(do_not_specialize=_UNTOLD)(_resident)}
_STREAMED = {True: triton.jit(_streamed), False: triton.jit(do_not_specialize=_UNTOLD)(_streamed)}


class Model(nn.Module):
    """out = (x - mean) * rsqrt(variance + eps) * weight + bias, in fp32, rounded once to bf16."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        *leading, H = x.shape
        R = math.prod(leading)
        x = x.reshape(R, H)
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty((R, H), dtype=x.dtype, device=x.device)
        if R == 0:
            return out.view(*leading, H)
        config = _config(rows=R, last=H)
        block, rows, warps = int(config["block"]), int(config["rows"]), int(config["num_warps"])
        block = min(block, triton.next_power_of_2(H), MAX_ELEMENTS_PER_LANE * 32 * warps)
        chunks = triton.cdiv(H, block)
        rows = min(rows, _power_of_2(MAX_ELEMENTS_PER_LANE * 32 * warps // (chunks * block)))
        numbers = H, x.stride(0), weight.stride(0), bias.stride(0), self.eps
        if rows == 0 or chunks > MAX_CHUNKS:
            _STREAMED[H % 16 == 0][(R,)](out, x, weight, bias, *numbers, block, num_warps=warps)
        else:
            grid = (triton.cdiv(R, rows),)
            _RESIDENT[H % 16 == 0][grid](
                out, x, weight, bias, R, *numbers, rows, block, chunks, num_warps=warps
            )
        return out.view(*leading, H)


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))


def _power_of_2(number: int) -> int:
    """The largest power of two that is at most `number`; 0 below 1."""
    return 1 << number.bit_length() >> 1
