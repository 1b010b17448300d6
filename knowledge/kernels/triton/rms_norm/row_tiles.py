"""---
title: RMSNorm in register-resident row tiles
technique: [register-tiling, vectorised-loads, warp-per-row, chunked-rows, programmatic-dependent-launch]
dsl: triton
architecture: [sm_90]
operator: rms_norm
symptoms: [launch-bound, memory-bound, wasted-lanes, cross-warp-barrier]
preconditions: "bf16 x [T, H], weight [H]; any row stride and alignment; a strided last dimension is copied"
tunables:
  block: [128, 256, 512, 1024, 2048, 4096, 8192]
  rows: [1, 2, 4, 8, 16, 32]
  num_warps: [1, 2, 4, 8, 16]
  cache: [default, stream]
  pdl: [0, 1]
source: own work
licence: Apache-2.0
---
The operator moves 4 bytes an element and computes almost nothing, so the aim is one pass over x, with
enough bytes in flight and no lane idle.

A program owns `rows` rows and keeps them in registers between the sum of squares and the scaling, so x is
read once. A row is cut into chunks of `block` columns rather than padded to the next power of two: 7168 is
7 full chunks of 1024, where padding would idle one lane in eight, and 1152 would idle almost half. The
chunks' squares are added lane by lane first, so a row costs one cross-lane reduction however long it is.
With `block` 256 and 8 columns a lane, that reduction stays inside one warp and needs no barrier.

`pdl` lets the launch of the next kernel overlap this one's tail (programmatic dependent launch). Every global
access comes after the wait, so the order that the stream promises is kept. It pays in launches, and costs in
programs: prefer larger tiles with it when T is large. `cache` "stream" marks x and the output evict-first.

The order in which a row is summed depends on `block` and on how many warps share a row, so a table that fixes
both for a given H is batch-invariant. It never depends on the alignment or the strides of the inputs.
"""

import torch
import triton
import triton.language as tl
from torch import nn
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    (
        {"token_count": 8192, "hidden_size": 128},
        {"block": 128, "rows": 8, "num_warps": 4, "cache": "default", "pdl": 1},
    ),
    ({"hidden_size": 128}, {"block": 128, "rows": 16, "num_warps": 4, "cache": "default", "pdl": 1}),
    ({"hidden_size": 1536}, {"block": 256, "rows": 2, "num_warps": 2, "cache": "default", "pdl": 1}),
    ({"hidden_size": 8192}, {"block": 1024, "rows": 1, "num_warps": 4, "cache": "default", "pdl": 1}),
    ({}, {"block": 4096, "rows": 1, "num_warps": 16, "cache": "default", "pdl": 1}),
]
# atrex: end

MAX_ELEMENTS_PER_THREAD = 96
"""The most of a tile that a thread keeps in registers; a larger tile is read twice instead."""


@triton.jit
def _load_row(base, columns, inside, step, H, BLOCK: tl.constexpr, CHUNKS: tl.constexpr, EXACT: tl.constexpr,
              EVICTION: tl.constexpr):  # fmt: skip
    """A tuple of CHUNKS tiles [ROWS, BLOCK], zero outside the tensor."""
    chunks = ()
    for i in tl.static_range(CHUNKS):
        at = columns + i * BLOCK
        mask = inside if EXACT else inside & (at < H)
        chunks += (tl.load(base + at * step, mask, other=0.0, eviction_policy=EVICTION),)
    return chunks


@triton.jit
def _reciprocal_rms(total, H, eps):
    """1 / sqrt(total / H + eps), each step correctly rounded: the fast approximations flush subnormals."""
    return tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(total, H * 1.0) + eps))


def _resident(x, weight, out, T, H, x_stride, weight_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr,
              CHUNKS: tl.constexpr, EXACT: tl.constexpr, EVICTION: tl.constexpr,
              PDL: tl.constexpr):  # fmt: skip
    """Normalise ROWS rows, held in registers as CHUNKS chunks of BLOCK columns (EXACT: that is H)."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    inside = rows < T
    rows = rows.to(tl.int64)
    columns = tl.arange(0, BLOCK)[None, :]
    chunks = _load_row(x + rows * x_stride, columns, inside, 1, H, BLOCK, CHUNKS, EXACT, EVICTION)
    # Each lane loads its own gains: a [1, BLOCK] load would be spread over the warps and passed around.
    everywhere = columns + tl.zeros([ROWS, 1], tl.int32)
    gains = _load_row(weight, everywhere, True, weight_stride, H, BLOCK, CHUNKS, EXACT, "evict_last")

    squares = tl.zeros([ROWS, BLOCK], tl.float32)
    for i in tl.static_range(CHUNKS):
        value = chunks[i].to(tl.float32)
        squares += value * value
    scale = _reciprocal_rms(tl.sum(squares, axis=1, keep_dims=True), H, eps)
    for i in tl.static_range(CHUNKS):
        at = columns + i * BLOCK
        y = chunks[i].to(tl.float32) * scale * gains[i].to(tl.float32)
        mask = inside if EXACT else inside & (at < H)
        tl.store(out + rows * H + at, y.to(tl.bfloat16), mask, eviction_policy=EVICTION)


def _streamed(x, weight, out, H, x_stride, weight_stride, eps, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Normalise one row too long for the registers: read it once for the sum, once more to scale it."""
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, H, BLOCK):
        at = start + columns
        value = tl.load(x + row * x_stride + at, at < H, other=0.0).to(tl.float32)
        squares += value * value
    scale = _reciprocal_rms(tl.sum(squares, axis=0), H, eps)
    for start in tl.range(0, H, BLOCK):
        at = start + columns
        mask = at < H
        value = tl.load(x + row * x_stride + at, mask, other=0.0, eviction_policy="evict_first")
        gain = tl.load(weight + at * weight_stride, mask, other=0.0, eviction_policy="evict_last")
        y = value.to(tl.float32) * scale * gain.to(tl.float32)
        tl.store(out + row * H + at, y.to(tl.bfloat16), mask)


# The compiler picks lanes, and so the order of a sum, from the alignments that it is told of. Where H is a
# multiple of 16 the output's own alignment fixes them. Elsewhere it must not hear that some strided x happens
# to be aligned, or that x would round unlike its contiguous copy.
_UNTOLD = ["x", "weight", "x_stride", "weight_stride"]
_RESIDENT = {
    True: triton.jit(do_not_specialize=["T"])(_resident),
    False: triton.jit(do_not_specialize=["T", *_UNTOLD])(_resident),
}
_STREAMED = {
    True: triton.jit(_streamed),
    False: triton.jit(do_not_specialize=_UNTOLD)(_streamed),
}


class Model(nn.Module):
    """out = x * rsqrt(mean(x**2, -1) + eps) * weight, in fp32, rounded once to bf16.

    Shapes: x [T, H] bf16, weight [H] bf16, out [T, H] bf16, contiguous.
    Raises ValueError for other ranks or dtypes, two devices, or a weight of another length.
    """

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self._plans: dict[tuple[int, int, str], tuple[bool, int, dict[str, object]]] = {}

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        _check(x, weight)
        T, H = x.shape
        out = torch.empty((T, H), dtype=x.dtype, device=x.device)
        if out.numel() == 0:
            return out
        if H > 1 and x.stride(1) != 1:
            x = x.contiguous()
        key = (T, H, x.device.type)
        if key not in self._plans:
            self._plans[key] = _plan(*key)
        resident, programs, constants = self._plans[key]
        strides = x.stride(0), weight.stride(0)
        if resident:
            _RESIDENT[H % 16 == 0][(programs,)](x, weight, out, T, H, *strides, self.eps, **constants)
        else:
            _STREAMED[H % 16 == 0][(programs,)](x, weight, out, H, *strides, self.eps, **constants)
        return out


def _check(x: torch.Tensor, weight: torch.Tensor) -> None:
    if x.dim() != 2 or weight.dim() != 1 or x.shape[1] != weight.shape[0]:
        shapes = f"{list(x.shape)} and {list(weight.shape)}"
        raise ValueError(f"rms_norm wants x [T, H] and weight [H], got {shapes}")
    if x.dtype != torch.bfloat16 or weight.dtype != torch.bfloat16:
        raise ValueError(f"rms_norm wants bfloat16 x and weight, got {x.dtype} and {weight.dtype}")
    if x.device != weight.device:
        raise ValueError(f"rms_norm wants x and weight on one device, got {x.device} and {weight.device}")


def _plan(T: int, H: int, device_type: str) -> tuple[bool, int, dict[str, object]]:
    """Whether a tile fits the registers, the number of programs, and the kernel's constants."""
    dims = {"token_count": T, "hidden_size": H}
    config = next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
    block, rows, warps = int(config["block"]), int(config["rows"]), int(config["num_warps"])
    constants: dict[str, object] = {"BLOCK": block, "num_warps": warps, "PDL": False}
    if config["pdl"] and device_type == "cuda":
        constants |= {"PDL": True, "launch_pdl": True}
    chunks = triton.cdiv(H, block)
    if rows * chunks * block > MAX_ELEMENTS_PER_THREAD * 32 * warps:
        return False, T, constants
    eviction = "evict_first" if config["cache"] == "stream" else ""
    constants |= {"ROWS": rows, "CHUNKS": chunks, "EXACT": chunks * block == H, "EVICTION": eviction}
    return True, triton.cdiv(T, rows), constants
