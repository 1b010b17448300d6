"""---
title: L2 norm in register-resident row tiles
technique: [register-tiling, chunked-rows, single-pass]
dsl: triton
architecture: [sm_90]
operator: l2_norm
symptoms: [launch-bound, memory-bound, wasted-lanes, cross-warp-barrier]
preconditions: "bf16 x [T, H]; any row stride and alignment; a strided last dimension is copied"
tunables:
  block: [128, 256, 512, 1024, 2048, 4096, 8192]
  rows: [1, 2, 4, 8, 16, 32]
  num_warps: [1, 2, 4, 8, 16]
source: own work
licence: Apache-2.0
---
The operator reads and writes 2 bytes an element and computes almost nothing, so x should be read once.

A program owns `rows` rows and keeps them in registers between the sum of squares and the scaling. A row is
cut into chunks of `block` columns rather than padded to the next power of two, and the chunks' squares are
added lane by lane first: a row costs one reduction across lanes however long it is. Short rows want several
`rows` a program; long rows want more warps. Rows that the registers do not hold are read twice, `block`
columns at a time.

The order of a sum depends on `block` and on how many warps share a row. It never depends on the alignment or
the strides of x: where the output's own alignment does not settle which lane holds what, the compiler is
told nothing about x.
"""

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


def _resident(out, x, T, H, x_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr,
              CHUNKS: tl.constexpr):  # fmt: skip
    """Normalise ROWS rows, held in registers as CHUNKS chunks of BLOCK columns."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    chunks = ()
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for i in tl.static_range(CHUNKS):
        at = column + i * BLOCK
        narrow = tl.load(x + row * x_stride + at, (row < T) & (at < H), other=0.0)
        chunks += (narrow,)
        squares += narrow.to(tl.float32) * narrow.to(tl.float32)
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=1, keep_dims=True) + eps))
    for i in tl.static_range(CHUNKS):
        at = column + i * BLOCK
        y = chunks[i].to(tl.float32) * scale
        tl.store(out + row * H + at, y.to(tl.bfloat16), (row < T) & (at < H))


def _streamed(out, x, H, x_stride, eps, BLOCK: tl.constexpr):
    """Normalise one row too long for the registers: once through for the sum, once more to scale it."""
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, H, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * x_stride + column, column < H, other=0.0).to(tl.float32)
        squares += value * value
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.sum(squares, axis=0) + eps))
    for start in tl.range(0, H, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * x_stride + column, column < H, other=0.0).to(tl.float32)
        tl.store(out + row * H + column, (value * scale).to(tl.bfloat16), column < H)


# The compiler picks lanes, and so the order of a sum, from the alignments that it is told of. Where H is a
# multiple of 16 the output's settles them; elsewhere x must not seem aligned in one layout only.
_UNTOLD = ["x", "x_stride"]
_RESIDENT = {True: triton.jit(_resident), False: triton.jit(do_not_specialize=_UNTOLD)(_resident)}
_STREAMED = {True: triton.jit(_streamed), False: triton.jit(do_not_specialize=_UNTOLD)(_streamed)}


class Model(nn.Module):
    """out = x * rsqrt(sum(x**2, -1) + eps), in fp32, rounded once to bf16."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        T, H = x.shape
        out = torch.empty((T, H), dtype=x.dtype, device=x.device)
        if T == 0:
            return out
        config = _config(num_tokens=T, hidden_size=H)
        block, rows, warps = int(config["block"]), int(config["rows"]), int(config["num_warps"])
        block = min(block, triton.next_power_of_2(H), MAX_ELEMENTS_PER_LANE * 32 * warps)
        chunks = triton.cdiv(H, block)
        rows = min(rows, _power_of_2(MAX_ELEMENTS_PER_LANE * 32 * warps // (chunks * block)))
        if rows == 0 or chunks > MAX_CHUNKS:
            _STREAMED[H % 16 == 0][(T,)](out, x, H, x.stride(0), self.eps, block, num_warps=warps)
        else:
            grid = (triton.cdiv(T, rows),)
            _RESIDENT[H % 16 == 0][grid](
                out, x, T, H, x.stride(0), self.eps, rows, block, chunks, num_warps=warps
            )
        return out


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))


def _power_of_2(number: int) -> int:
    """The largest power of two that is at most `number`; 0 below 1."""
    return 1 << number.bit_length() >> 1
