"""---
title: Residual addition and RMSNorm in register-resident row tiles
technique: [fusion, register-tiling, chunked-rows]
dsl: triton
architecture: [sm_90]
operator: fused_add_rms_norm
symptoms: [launch-bound, memory-bound, wasted-lanes, cross-warp-barrier, unfused-elementwise]
preconditions: "bf16 x and residual [T, H], weight [H]; any row stride and alignment"
tunables:
  block: [128, 256, 512, 1024, 2048, 4096, 8192]
  rows: [1, 2, 4, 8, 16]
  num_warps: [1, 2, 4, 8, 16]
source: own work
licence: Apache-2.0
---
The sum of x and residual is rounded to bf16, stored, and normalised as rounded. It stays in registers
between the sum of squares and the scaling, so both inputs are read once: 8 bytes an element in all.

A program owns `rows` rows. A row is cut into chunks of `block` columns rather than padded to the next power
of two, and the chunks' squares are added lane by lane first: a row costs one reduction across lanes however
long it is. Short rows want several `rows` a program; long rows want more warps. Rows that the registers do
not hold are added twice, `block` columns at a time: reading back the stored sum would need a barrier.

The order of a sum of squares depends on `block` and on how many warps share a row. It never depends on the
alignment or the strides of the inputs: where the outputs' own alignment does not settle which lane holds
what, the compiler is told nothing about them.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"block": 1024, "rows": 1, "num_warps": 8}),
]
# atrex: end

MAX_ELEMENTS_PER_LANE = 64
"""Of a resident tile: more would leave the registers."""
MAX_CHUNKS = 16
"""Of a resident row: they are unrolled, so more of them cost compile time."""


@triton.jit
def _rounded_sum(x, residual, inside):
    left = tl.load(x, inside, other=0.0).to(tl.float32)
    right = tl.load(residual, inside, other=0.0).to(tl.float32)
    return (left + right).to(tl.bfloat16)


@triton.jit
def _reciprocal_rms(squares, H, eps):
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(squares, H * 1.0) + eps))


def _resident(out, total, x, residual, weight, T, H, x_stride, residual_stride, weight_stride, eps,
              ROWS: tl.constexpr, BLOCK: tl.constexpr, CHUNKS: tl.constexpr):  # fmt: skip
    """Add and normalise ROWS rows, held in registers as CHUNKS chunks of BLOCK columns."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :] + tl.zeros([ROWS, 1], tl.int32)
    chunks = ()
    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for i in tl.static_range(CHUNKS):
        at = column + i * BLOCK
        inside = (row < T) & (at < H)
        narrow = _rounded_sum(x + row * x_stride + at, residual + row * residual_stride + at, inside)
        tl.store(total + row * H + at, narrow, inside)
        chunks += (narrow,)
        squares += narrow.to(tl.float32) * narrow.to(tl.float32)
    scale = _reciprocal_rms(tl.sum(squares, axis=1, keep_dims=True), H, eps)
    for i in tl.static_range(CHUNKS):
        at = column + i * BLOCK
        gain = tl.load(weight + at * weight_stride, at < H, other=0.0).to(tl.float32)
        y = chunks[i].to(tl.float32) * scale * gain
        tl.store(out + row * H + at, y.to(tl.bfloat16), (row < T) & (at < H))


def _streamed(out, total, x, residual, weight, H, x_stride, residual_stride, weight_stride, eps,
              BLOCK: tl.constexpr):  # fmt: skip
    """Add and normalise one row too long for the registers, which is therefore added twice."""
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    residual += row * residual_stride
    squares = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, H, BLOCK):
        column = start + tl.arange(0, BLOCK)
        narrow = _rounded_sum(x + column, residual + column, column < H)
        tl.store(total + row * H + column, narrow, column < H)
        squares += narrow.to(tl.float32) * narrow.to(tl.float32)
    scale = _reciprocal_rms(tl.sum(squares, axis=0), H, eps)
    for start in tl.range(0, H, BLOCK):
        column = start + tl.arange(0, BLOCK)
        narrow = _rounded_sum(x + column, residual + column, column < H)
        gain = tl.load(weight + column * weight_stride, column < H, other=0.0).to(tl.float32)
        tl.store(out + row * H + column, (narrow.to(tl.float32) * scale * gain).to(tl.bfloat16), column < H)


# The compiler picks lanes, and so the order of a sum, from the alignments that it is told of. Where H is a
# multiple of 16 the outputs' settle them; elsewhere x must not seem aligned in one layout only.
_UNTOLD = ["x", "residual", "weight", "x_stride", "residual_stride", "weight_stride"]
_RESIDENT = {True: triton.jit(_resident), False: triton.jit(do_not_specialize=_UNTOLD)(_resident)}
_STREAMED = {True: triton.jit(_streamed), False: triton.jit(do_not_specialize=_UNTOLD)(_streamed)}


class Model(nn.Module):
    """residual = bf16(x + residual) and out = its rms_norm with `weight`; both inputs stay as they are."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if x.stride(-1) != 1:
            x = x.contiguous()
        if residual.stride(-1) != 1:
            residual = residual.contiguous()
        T, H = x.shape
        out, total = (torch.empty((T, H), dtype=x.dtype, device=x.device) for _ in range(2))
        if T == 0:
            return {"out": out, "residual": total}
        config = _config(token_count=T, hidden_size=H)
        block, rows, warps = int(config["block"]), int(config["rows"]), int(config["num_warps"])
        block = min(block, triton.next_power_of_2(H), MAX_ELEMENTS_PER_LANE * 32 * warps)
        chunks = triton.cdiv(H, block)
        rows = min(rows, _power_of_2(MAX_ELEMENTS_PER_LANE * 32 * warps // (chunks * block)))
        tensors = out, total, x, residual, weight
        numbers = H, x.stride(0), residual.stride(0), weight.stride(0), self.eps
        if rows == 0 or chunks > MAX_CHUNKS:
            _STREAMED[H % 16 == 0][(T,)](*tensors, *numbers, block, num_warps=warps)
        else:
            grid = (triton.cdiv(T, rows),)
            _RESIDENT[H % 16 == 0][grid](*tensors, T, *numbers, rows, block, chunks, num_warps=warps)
        return {"out": out, "residual": total}


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))


def _power_of_2(number: int) -> int:
    """The largest power of two that is at most `number`; 0 below 1."""
    return 1 << number.bit_length() >> 1
