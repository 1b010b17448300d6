"""---
title: Paged cache write as a gather over the slots
technique: [gather-instead-of-scatter, tiling, vectorised-loads, single-launch]
dsl: triton
architecture: [sm_90]
operator: reshape_and_cache
symptoms: [memory-bound, launch-bound, uncoalesced-access]
preconditions: "bf16 rows [T, heads, D], caches [blocks, block_size, heads, D], int64 slots, distinct or -1"
tunables:
  variant: [invert, scan]
  block: [128, 256, 512, 1024, 2048, 4096]
  slots: [1, 2, 4, 8, 16]
  num_warps: [1, 2, 4, 8]
source: own work
licence: Apache-2.0
---
The outputs are whole caches, out of place, so a copy followed by a scatter would write the tokens' slots
twice. Here every slot is filled once, from its token's row or from the old cache, whichever it is.

`variant` says how a slot finds its token. "invert": a first, tiny kernel notes which token is written to each
slot; with the table's zeros that is three launches. "scan": every program looks through the whole slot
mapping for its own slots; that is one launch, and pays while the mapping is not longer than what a program
moves.

A program that fills owns `slots` slots and `block` columns (heads and their elements side by side)
of both caches. Small caches want small tiles, so that every multiprocessor gets one; large caches want
several loads a lane. `slots` is cut down where a lane would hold more than 64 elements of a cache.

Bits are moved, never converted: NaN and signed zeros travel, and neither tile nor layout changes anything.
Slots are distinct by contract; were one given twice, which token stays would be a matter of chance.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"variant": "invert", "block": 512, "slots": 2, "num_warps": 4}),
]
# atrex: end

MAX_ELEMENTS_PER_LANE = 64
"""Of one tile: more would leave the registers."""
SCANNED = 256
"""Entries of the slot mapping that are compared at a time."""


@triton.jit
def _invert(writer, slot_mapping, T, slot_stride, BLOCK: tl.constexpr):
    """writer[slot] = 1 + the token that is written there."""
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slot_mapping + token.to(tl.int64) * slot_stride, token < T, other=-1)
    tl.store(writer + slot, token + 1, slot >= 0)


@triton.jit
def _find(slot_mapping, slots, T, slot_stride, SLOTS: tl.constexpr, SCANNED: tl.constexpr):
    """1 + the token that is written to each slot; 0 where there is none."""
    found = tl.zeros([SLOTS], tl.int32)
    for start in tl.range(0, T, SCANNED):
        token = start + tl.arange(0, SCANNED)
        slot = tl.load(slot_mapping + token.to(tl.int64) * slot_stride, token < T, other=-1)
        here = slot[:, None] == slots[None, :]
        found = tl.maximum(found, tl.max(tl.where(here, token[:, None] + 1, 0), axis=0))
    return found


@triton.jit
def _fill(out, old, rows, slots, columns, token, inside, width, token_stride):
    """A tile of one cache: from the tokens' rows where there is a token, else from the old cache."""
    written = (token > 0)[:, None]
    row = (token - 1).to(tl.int64)[:, None]
    new = tl.load(rows + row * token_stride + columns, inside & written, other=0.0)
    kept = tl.load(old + slots[:, None] * width + columns, inside & ~written, other=0.0)
    tl.store(out + slots[:, None] * width + columns, tl.where(written, new, kept), inside)


@triton.jit
def _gather(key_out, value_out, key, value, key_cache, value_cache, writer, T, slot_count, width, key_stride,
            value_stride, slot_stride, chunks, SCANNED: tl.constexpr, SLOTS: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    """SLOTS slots times BLOCK columns of both caches; SCANNED: `writer` is the slot mapping."""
    program = tl.program_id(0)
    slots = (program // chunks).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    columns = (program % chunks * BLOCK + tl.arange(0, BLOCK))[None, :]
    if SCANNED > 0:
        token = _find(writer, slots, T, slot_stride, SLOTS, SCANNED)
    else:
        token = tl.load(writer + slots, slots < slot_count, other=0)
    inside = (slots < slot_count)[:, None] & (columns < width)
    _fill(key_out, key_cache, key, slots, columns, token, inside, width, key_stride)
    _fill(value_out, value_cache, value, slots, columns, token, inside, width, value_stride)


def _packed_tokens(rows: torch.Tensor) -> torch.Tensor:
    """Heads of a token side by side; any stride between tokens."""
    return rows if rows[:1].is_contiguous() else rows.contiguous()


def _inverted(slot_mapping: torch.Tensor, slots: int) -> torch.Tensor:
    """For each of `slots` slots 1 + the token that is written there, or 0; int32."""
    writer = torch.zeros(slots, dtype=torch.int32, device=slot_mapping.device)
    T = slot_mapping.shape[0]
    if T > 0:
        _invert[(triton.cdiv(T, 256),)](writer, slot_mapping, T, slot_mapping.stride(0), BLOCK=256)
    return writer


class Model(nn.Module):
    """Copies of both caches in which token t's row stands at slot_mapping[t]; -1 is written nowhere."""

    def forward(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        key, value = _packed_tokens(key), _packed_tokens(value)
        key_cache, value_cache = key_cache.contiguous(), value_cache.contiguous()
        T = key.shape[0]
        blocks, block_size, heads, head_size = key_cache.shape
        slots, width = blocks * block_size, heads * head_size
        outputs = [torch.empty_like(cache) for cache in (key_cache, value_cache)]
        config = _config(
            tokens=T,
            num_heads=heads,
            head_size=head_size,
            block_size=block_size,
            num_blocks=blocks,
            slots=slots,
        )
        warps = int(config["num_warps"])
        block = min(int(config["block"]), triton.next_power_of_2(width), MAX_ELEMENTS_PER_LANE * 32 * warps)
        many = min(int(config["slots"]), MAX_ELEMENTS_PER_LANE * 32 * warps // block)
        chunks = triton.cdiv(width, block)
        grid = (triton.cdiv(slots, many) * chunks,)
        scanned = SCANNED if config["variant"] == "scan" else 0
        writer = slot_mapping if scanned else _inverted(slot_mapping, slots)
        tensors = key, value, key_cache, value_cache, writer
        strides = key.stride(0), value.stride(0), slot_mapping.stride(0)
        _gather[grid](
            *(*outputs, *tensors, T, slots, width, *strides, chunks),
            SCANNED=scanned,
            SLOTS=many,
            BLOCK=block,
            num_warps=warps,
        )
        return {"key_cache": outputs[0], "value_cache": outputs[1]}


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
