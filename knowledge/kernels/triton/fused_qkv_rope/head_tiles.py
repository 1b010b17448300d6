"""---
title: Split, bias and rotation of packed q, k, v in one pass over tiles of heads
technique: [fusion, tiling, single-pass]
dsl: triton
architecture: [sm_90]
operator: fused_qkv_rope
symptoms: [launch-bound, memory-bound, unfused-elementwise]
preconditions: "bf16 or fp16 qkv [T, (H + 2 Hkv) D], int32 positions, optional bias; any row stride"
tunables:
  tokens: [1, 2, 4, 8, 16]
  heads: [1, 2, 4, 8, 16, 32]
  num_warps: [1, 2, 4, 8]
source: own work
licence: Apache-2.0
---
Everything is read once and written once: the split costs nothing, because each program writes its heads
where they belong, and the two halves of a head meet in the registers of the lane that rotates them.

A program owns `tokens` tokens and `heads` heads; along the second axis of the grid the first blocks are q's
heads, then k's, then v's, which are only moved. Sine and cosine depend on the token alone, so more `heads` a
program compute fewer of them. One token wants few heads a program, so that many multiprocessors share it.
The tile is cut down, tokens first, where a lane would hold more than 32 elements.

The angle is position * 2^(-2i log2(base) / R), from an exact exponent: few roundings, which a large position
would multiply. Sine and cosine are the accurate ones, since angles reach the position itself. No element
depends on the tile or on the layout.
"""

import math

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"tokens": 1, "heads": 8, "num_warps": 4}),
]
# atrex: end

MAX_ELEMENTS_PER_LANE = 32
"""Of a tile of whole heads: more would leave the registers."""


@triton.jit
def _load(source, bias, column, inside, BIASED: tl.constexpr):
    """Some columns of packed rows in fp32, with their bias."""
    value = tl.load(source, inside, other=0.0).to(tl.float32)
    if BIASED:
        value += tl.load(bias + column, inside, other=0.0).to(tl.float32)
    return value


@triton.jit
def _move(target, source, bias, present, element, skipped, D, bias_stride, BIASED: tl.constexpr):
    """Elements of heads that are not rotated: the sum with the bias, or the same bits."""
    inside = present & (element < D)
    if BIASED:
        value = _load(source + element, bias, (skipped + element) * bias_stride, inside, BIASED)
        moved = value.to(source.dtype.element_ty)
    else:
        moved = tl.load(source + element, inside, other=0.0)
    tl.store(target + element, moved, inside)


@triton.jit
def _turn(target, source, bias, present, angle, i, skipped, D, bias_stride, HALF: tl.constexpr,
          REST: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    """Rotate the first 2 HALF elements of some heads, and move the others."""
    inside = present & (i < HALF)
    a = _load(source + i, bias, (skipped + i) * bias_stride, inside, BIASED)
    b = _load(source + i + HALF, bias, (skipped + i + HALF) * bias_stride, inside, BIASED)
    cos, sin = tl.cos(angle), tl.sin(angle)
    tl.store(target + i, (a * cos - b * sin).to(source.dtype.element_ty), inside)
    tl.store(target + i + HALF, (b * cos + a * sin).to(source.dtype.element_ty), inside)
    if REST > 0:
        element = 2 * HALF + tl.arange(0, REST)[None, None, :]
        _move(target, source, bias, present, element, skipped, D, bias_stride, BIASED)


@triton.jit
def _qkv_rope(q, k, v, qkv, positions, bias, T, H, Hkv, D, octaves, qkv_stride, position_stride, bias_stride,
              HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST: tl.constexpr, HEAD_BLOCK: tl.constexpr,
              TOKENS: tl.constexpr, HEADS: tl.constexpr, BIASED: tl.constexpr):  # fmt: skip
    """TOKENS tokens and HEADS heads, of q, k or v."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    block = tl.program_id(1)
    q_blocks = tl.cdiv(H, HEADS)
    kv_blocks = tl.cdiv(Hkv, HEADS)
    head = tl.arange(0, HEADS)[None, :, None]
    i = tl.arange(0, HALF_BLOCK)[None, None, :]
    position = tl.load(positions + token * position_stride, token < T, other=0).to(tl.float32)
    # `octaves` is 2 log2(base) / R: one product and one power of two give the frequency.
    angle = position * tl.exp2(-(i.to(tl.float32) * octaves))
    if block < q_blocks:
        head += block * HEADS
        present = (token < T) & (head < H)
        source = qkv + token * qkv_stride + head * D
        target = q + token * H * D + head * D
        _turn(target, source, bias, present, angle, i, head * D, D, bias_stride, HALF, REST, BIASED)
    elif block < q_blocks + kv_blocks:
        head += (block - q_blocks) * HEADS
        present = (token < T) & (head < Hkv)
        skipped = (H + head) * D
        source = qkv + token * qkv_stride + skipped
        target = k + token * Hkv * D + head * D
        _turn(target, source, bias, present, angle, i, skipped, D, bias_stride, HALF, REST, BIASED)
    else:
        head += (block - q_blocks - kv_blocks) * HEADS
        present = (token < T) & (head < Hkv)
        skipped = (H + Hkv + head) * D
        source = qkv + token * qkv_stride + skipped
        target = v + token * Hkv * D + head * D
        element = tl.arange(0, HEAD_BLOCK)[None, None, :]
        _move(target, source, bias, present, element, skipped, D, bias_stride, BIASED)


class Model(nn.Module):
    """q, k, v [T, heads, D] out of packed rows, with the bias; the first rope_dim of q's and k's rotated."""

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rope_dim: int = 128,
        rope_base: float = 10000.0,
    ) -> None:
        super().__init__()
        self.extents = num_heads, num_kv_heads, head_dim
        self.half = rope_dim // 2
        self.octaves = math.log2(rope_base) / self.half

    def forward(
        self, qkv: torch.Tensor, positions: torch.Tensor, qkv_bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if qkv.stride(-1) != 1:
            qkv = qkv.contiguous()
        T = qkv.shape[0]
        H, Hkv, D = self.extents
        q, k, v = (torch.empty((T, n, D), dtype=qkv.dtype, device=qkv.device) for n in (H, Hkv, Hkv))
        if T == 0:
            return q, k, v
        config = _config(
            total_tokens=T, num_heads=H, num_kv_heads=Hkv, head_dim=D, qkv_width=(H + 2 * Hkv) * D
        )
        warps = int(config["num_warps"])
        head_block = triton.next_power_of_2(D)
        many = max(1, MAX_ELEMENTS_PER_LANE * 32 * warps // head_block)
        heads = min(int(config["heads"]), triton.next_power_of_2(H), many)
        tokens = min(int(config["tokens"]), many // heads)
        rest = D - 2 * self.half
        tensors = q, k, v, qkv, positions, qkv if qkv_bias is None else qkv_bias
        strides = qkv.stride(0), positions.stride(0), 0 if qkv_bias is None else qkv_bias.stride(0)
        _qkv_rope[(triton.cdiv(T, tokens), triton.cdiv(H, heads) + 2 * triton.cdiv(Hkv, heads))](
            *(*tensors, T, H, Hkv, D, self.octaves, *strides),
            HALF=self.half,
            HALF_BLOCK=triton.next_power_of_2(self.half),
            REST=triton.next_power_of_2(rest) if rest else 0,
            HEAD_BLOCK=head_block,
            TOKENS=tokens,
            HEADS=heads,
            BIASED=qkv_bias is not None,
            num_warps=warps,
        )
        return q, k, v


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
