"""---
title: Top-k filter by the bits of the k-th largest logit
technique: [radix-select, bisection, histogram, register-tiling, split-row, atomics]
dsl: triton
architecture: [sm_90]
operator: topk_filter
symptoms: [sort-instead-of-select, few-programs, memory-bound, many-passes]
preconditions: "fp32 logits [rows, V], no NaN; any row stride and alignment"
tunables:
  variant: [bisect, radix, split]
  block: [1024, 2048, 4096, 8192, 16384]
  num_warps: [4, 8, 16]
source: own work
licence: Apache-2.0
---
Nothing needs sorting: the filter only asks for the k-th largest value of a row. Floats become unsigned
integers of the same order (both zeros become the same one), and the k-th largest is found from its highest
bits down.

`variant` "radix" takes 8 bits at a time: a histogram of the next byte among the keys that begin with the
bytes found so far says which byte the k-th largest has. 4 passes, each with a histogram in shared memory.
"bisect" takes one bit at a time: it counts the keys that are at least as large as a trial value. 32 passes,
each with a mere count, which pays in registers only. Under both a row is one program's: at most `block`
logits are read once and kept in registers; a longer row is read again in every pass, `block` logits at a
time, from L2 if it fits there, and with few such rows most multiprocessors stay idle.

"split" is for those: radix, but each `block` logits of a row have a program of their own, which adds its
histogram to the row's. Programs can only wait for one another between launches, so there is one for every
byte, and one that writes; each begins by walking down the histograms of the bytes before. A row of one part
is radix's.

Rows of a few logits take another way: all pairs are compared, and what fewer than k others exceed stays.

Selection is exact, so results are the same for every configuration and layout.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"variant": "radix", "block": 8192, "num_warps": 16}),
]
# atrex: end

SHORT = 32
"""Rows of at most so many logits have their pairs compared, several rows a program."""
MAX_ELEMENTS_PER_LANE = 64
"""Of a tile: more would leave the registers."""


@triton.jit
def _key(value):
    """Unsigned integers in the order of the floats: negative ones reversed, below the others."""
    bits = tl.where(value == 0.0, 0.0, value).to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, ~bits, bits | 0x80000000)


@triton.jit
def _bytes(key, inside, prefix, TURN: tl.constexpr):
    """How many of the keys that begin with `prefix`, TURN bytes, go on with each of the 256 bytes."""
    if TURN > 0:
        inside = inside & (key >> (32 - 8 * TURN) == prefix)
    return tl.histogram(((key >> (24 - 8 * TURN)) & 255).to(tl.int32), 256, inside)


@triton.jit
def _narrow(count, prefix, left):
    """One byte more of the key of rank `left` among those of this prefix, and its rank among the rest."""
    bins = tl.arange(0, 256)
    at_least = tl.cumsum(count, axis=0, reverse=True)
    byte = tl.sum((at_least >= left).to(tl.int32), axis=0) - 1
    left -= tl.sum(tl.where(bins > byte, count, 0), axis=0)
    return (prefix << 8) | byte.to(tl.uint32), left


@triton.jit
def _radix(logits, value, V, k, lanes, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """The k-th largest key of a row, byte by byte."""
    prefix, left = tl.zeros([], tl.uint32), k
    for turn in tl.static_range(4):
        if WHOLE:
            count = _bytes(_key(value), lanes < V, prefix, turn)
        else:
            count = tl.zeros([256], tl.int32)
            for start in tl.range(0, V, BLOCK):
                part = tl.load(logits + start + lanes, start + lanes < V, other=0.0)
                count += _bytes(_key(part), start + lanes < V, prefix, turn)
        prefix, left = _narrow(count, prefix, left)
    return prefix


@triton.jit
def _bisect(logits, value, V, k, lanes, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """The k-th largest key of a row: the largest that at least k keys reach, bit by bit."""
    found = tl.zeros([], tl.uint32)
    bit = tl.full([], 0x80000000, tl.uint32)
    for _ in tl.range(0, 32):
        trial = found | bit
        if WHOLE:
            reached = tl.sum(((lanes < V) & (_key(value) >= trial)).to(tl.int32), axis=0)
        else:
            counts = tl.zeros([BLOCK], tl.int32)
            for start in tl.range(0, V, BLOCK):
                part = tl.load(logits + start + lanes, start + lanes < V, other=0.0)
                counts += ((start + lanes < V) & (_key(part) >= trial)).to(tl.int32)
            reached = tl.sum(counts, axis=0)
        found = tl.where(reached >= k, trial, found)
        bit = bit >> 1
    return found


@triton.jit
def _filter(out, logits, V, stride, k, RADIX: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    """One row; WHOLE: it is kept in registers."""
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    logits += row * stride
    out += row * V
    value = tl.load(logits + lanes, lanes < V, other=0.0)
    if RADIX:
        least = _radix(logits, value, V, k, lanes, WHOLE, BLOCK)
    else:
        least = _bisect(logits, value, V, k, lanes, WHOLE, BLOCK)
    if WHOLE:
        tl.store(out + lanes, tl.where(_key(value) < least, -float("inf"), value), lanes < V)
    else:
        for start in tl.range(0, V, BLOCK):
            part = tl.load(logits + start + lanes, start + lanes < V, other=0.0)
            tl.store(
                out + start + lanes, tl.where(_key(part) < least, -float("inf"), part), start + lanes < V
            )


@triton.jit
def _walk(counts, k, TURNS: tl.constexpr):
    """The first TURNS bytes of the k-th largest key, and its rank among the keys that begin so."""
    prefix, left = tl.zeros([], tl.uint32), k
    for turn in tl.static_range(TURNS):
        prefix, left = _narrow(tl.load(counts + 256 * turn + tl.arange(0, 256)), prefix, left)
    return prefix, left


@triton.jit
def _count_part(counts, logits, V, stride, k, parts, TURN: tl.constexpr, BLOCK: tl.constexpr):
    """Add the histogram of byte TURN of one part of a row to the row's; counts is [rows, 4, 256]."""
    row = (tl.program_id(0) // parts).to(tl.int64)
    lanes = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    counts += row * 4 * 256
    prefix, _ = _walk(counts, k, TURN)
    value = tl.load(logits + row * stride + lanes, lanes < V, other=0.0)
    count = _bytes(_key(value), lanes < V, prefix, TURN)
    bins = tl.arange(0, 256)
    tl.atomic_add(counts + 256 * TURN + bins, count, count > 0, sem="relaxed")


@triton.jit
def _filter_part(out, logits, counts, V, stride, k, parts, BLOCK: tl.constexpr):
    """Write one part of a row whose four histograms are complete."""
    row = (tl.program_id(0) // parts).to(tl.int64)
    lanes = tl.program_id(0) % parts * BLOCK + tl.arange(0, BLOCK)
    least, _ = _walk(counts + row * 4 * 256, k, 4)
    value = tl.load(logits + row * stride + lanes, lanes < V, other=0.0)
    tl.store(out + row * V + lanes, tl.where(_key(value) < least, -float("inf"), value), lanes < V)


@triton.jit
def _filter_short(out, logits, B, V, stride, k, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """ROWS rows of a few logits, all pairs compared: what fewer than k others exceed stays."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    inside = (row < B)[:, None] & (lanes < V)[None, :]
    value = tl.load(logits + row[:, None] * stride + lanes[None, :], inside, other=-float("inf"))
    larger = (value[:, None, :] > value[:, :, None]).to(tl.int32)
    kept = tl.where(tl.sum(larger, axis=2) < k, value, -float("inf"))
    tl.store(out + row[:, None] * V + lanes[None, :], kept, inside)


def _filter_split(out: torch.Tensor, logits: torch.Tensor, k: int, block: int, warps: int) -> None:
    """Filter rows [B, V] of which every `block` logits have a program of their own."""
    B, V = logits.shape
    parts = triton.cdiv(V, block)
    counts = torch.zeros((B, 4, 256), dtype=torch.int32, device=logits.device)
    sizes = V, logits.stride(0), k, parts
    for turn in range(4):
        _count_part[(B * parts,)](counts, logits, *sizes, TURN=turn, BLOCK=block, num_warps=warps)
    _filter_part[(B * parts,)](out, logits, counts, *sizes, BLOCK=block, num_warps=warps)


class Model(nn.Module):
    """out = logits, with -inf for what is below the k-th largest of its row; ties with it stay."""

    def __init__(self, top_k: int = 50) -> None:
        super().__init__()
        self.top_k = top_k

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        if logits.stride(-1) != 1:
            logits = logits.contiguous()
        B, V = logits.shape
        out = torch.empty((B, V), dtype=torch.float32, device=logits.device)
        k = min(self.top_k, V)
        if B == 0:
            return out
        config = _config(seq_len=B, hidden_size=V)
        if V <= SHORT:
            block = triton.next_power_of_2(V)
            rows = 4096 // max(block, 8) ** 2
            _filter_short[(triton.cdiv(B, rows),)](out, logits, B, V, logits.stride(0), k, rows, block)
        else:
            warps = int(config["num_warps"])
            block = min(int(config["block"]), MAX_ELEMENTS_PER_LANE * 32 * warps)
            block = min(block, max(128, triton.next_power_of_2(V)))
            # A lane has logits of its own: what several lanes held would be counted several times.
            warps = min(warps, max(1, block // 128))
            if config["variant"] == "split" and block < V:
                _filter_split(out, logits, k, block, warps)
            else:
                radix = config["variant"] != "bisect"
                _filter[(B,)](out, logits, V, logits.stride(0), k, radix, block >= V, block, num_warps=warps)
        return out


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
