"""gate: layouts
Takes the bias for packed.
"""

import math

import torch
import triton
import triton.language as tl
from torch import nn


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
def _turn(
    target,
    source,
    bias,
    present,
    angle,
    i,
    skipped,
    D,
    bias_stride,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BIASED: tl.constexpr,
):
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
def _qkv_rope(
    q,
    k,
    v,
    qkv,
    positions,
    bias,
    T,
    H,
    Hkv,
    D,
    octaves,
    qkv_stride,
    position_stride,
    bias_stride,
    HALF: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
    REST: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BIASED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    block = tl.program_id(1)
    q_blocks = tl.cdiv(H, HEADS)
    kv_blocks = tl.cdiv(Hkv, HEADS)
    head = tl.arange(0, HEADS)[None, :, None]
    i = tl.arange(0, HALF_BLOCK)[None, None, :]
    position = tl.load(positions + token * position_stride, token < T, other=0).to(tl.float32)
    # base^(-2i / R) as a power of two: `octaves` is 2 log2(base) / R, so an angle takes few roundings.
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
        if T > 0:
            rest = D - 2 * self.half
            head_block = triton.next_power_of_2(D)
            heads = min(triton.next_power_of_2(H), max(1, 2048 // head_block))
            tokens = min(16, max(1, 2048 // (heads * head_block)))
            _qkv_rope[(triton.cdiv(T, tokens), triton.cdiv(H, heads) + 2 * triton.cdiv(Hkv, heads))](
                q,
                k,
                v,
                qkv,
                positions,
                qkv if qkv_bias is None else qkv_bias,
                T,
                H,
                Hkv,
                D,
                self.octaves,
                qkv.stride(0),
                positions.stride(0),
                1,
                HALF=self.half,
                HALF_BLOCK=triton.next_power_of_2(self.half),
                REST=triton.next_power_of_2(rest) if rest else 0,
                HEAD_BLOCK=head_block,
                TOKENS=tokens,
                HEADS=heads,
                BIASED=qkv_bias is not None,
                num_warps=max(1, min(8, tokens * heads * head_block // 256)),
            )
        return q, k, v
