"""---
title: Rotation by angles of time, height and width, tiles of heads that share their angles
technique: [fusion, tiling, single-pass, data-reuse]
dsl: triton
architecture: [sm_90]
operator: mrope
symptoms: [memory-bound, launch-bound, unfused-elementwise]
preconditions: "bf16 q [T, Hq D], k [T, Hkv D], fp32 cos and sin [3, T, R / 2] of any strides"
tunables:
  tokens: [1, 2, 4, 8, 16]
  heads: [1, 2, 4, 8, 16, 32]
  num_warps: [1, 2, 4, 8]
source: own work
licence: Apache-2.0
---
Each frequency belongs to one of three axes, so a third of cos and sin is read: the axis is computed first,
and with it the address. q and k go through one launch; along the second axis of the grid the first blocks are
q's heads, then k's.

A program owns `tokens` tokens and `heads` heads. All heads of a token turn by the same angles, so more
`heads` a program read them less often; k has few heads, and a tile wider than they are leaves lanes idle. Few
tokens want few heads a program, so that many multiprocessors share them. The tile is cut down, tokens first,
where a lane would hold more than 32 elements of it.

Pairs lie half a rotation apart (NeoX) or side by side; the latter are read by every other address, which
wastes no traffic, since a line's other half is read by the next instruction. No element depends on tile or
layout.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"tokens": 1, "heads": 4, "num_warps": 4}),
]
# atrex: end

MAX_ELEMENTS_PER_LANE = 32
"""Of a tile of whole heads: more would leave the registers."""


@triton.jit
def _axis(i, time, height, width, INTERLEAVED: tl.constexpr):
    """Which of time, height and width a frequency turns by: one after the other, or in threes."""
    if INTERLEAVED:
        axis = tl.where((i % 3 == 1) & (i <= 3 * height), 1, 0)
        axis = tl.where((i % 3 == 2) & (i <= 3 * width), 2, axis)
    else:
        axis = tl.where(i < time, 0, tl.where(i < time + height, 1, 2))
    return axis.to(tl.int64)


@triton.jit
def _turn(out, x, token, head, i, cos, sin, T, heads, D, x_stride, HALF: tl.constexpr, REST: tl.constexpr,
          NEOX: tl.constexpr):  # fmt: skip
    """Rotate the first 2 HALF elements of some heads, and move the others."""
    present = (token < T) & (head < heads)
    source = x + token * x_stride + head * D
    target = out + token * heads * D + head * D
    if NEOX:
        first, second = i, i + HALF
    else:
        first, second = 2 * i, 2 * i + 1
    inside = present & (i < HALF)
    a = tl.load(source + first, inside, other=0.0).to(tl.float32)
    b = tl.load(source + second, inside, other=0.0).to(tl.float32)
    tl.store(target + first, (a * cos - b * sin).to(x.dtype.element_ty), inside)
    tl.store(target + second, (b * cos + a * sin).to(x.dtype.element_ty), inside)
    if REST > 0:
        element = 2 * HALF + tl.arange(0, REST)[None, None, :]
        inside = present & (element < D)
        tl.store(target + element, tl.load(source + element, inside, other=0.0), inside)


@triton.jit
def _mrope(q_out, k_out, q, k, cos, sin, T, Hq, Hkv, D, time, height, width, q_stride, k_stride, cos_axis,
           cos_token, cos_frequency, sin_axis, sin_token, sin_frequency, HALF: tl.constexpr,
           HALF_BLOCK: tl.constexpr, REST: tl.constexpr, TOKENS: tl.constexpr, HEADS: tl.constexpr,
           INTERLEAVED: tl.constexpr, NEOX: tl.constexpr):  # fmt: skip
    """TOKENS tokens and HEADS heads, of q or of k."""
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    block = tl.program_id(1)
    q_blocks = tl.cdiv(Hq, HEADS)
    head = tl.arange(0, HEADS)[None, :, None]
    i = tl.arange(0, HALF_BLOCK)[None, None, :]
    axis = _axis(i, time, height, width, INTERLEAVED)
    inside = (token < T) & (i < HALF)
    c = tl.load(cos + axis * cos_axis + token * cos_token + i * cos_frequency, inside, other=0.0)
    s = tl.load(sin + axis * sin_axis + token * sin_token + i * sin_frequency, inside, other=0.0)
    if block < q_blocks:
        _turn(q_out, q, token, head + block * HEADS, i, c, s, T, Hq, D, q_stride, HALF, REST, NEOX)
    else:
        head += (block - q_blocks) * HEADS
        _turn(k_out, k, token, head, i, c, s, T, Hkv, D, k_stride, HALF, REST, NEOX)


class Model(nn.Module):
    """q and k with the first rotary_dim of each head rotated; the rest of a head stays."""

    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        mrope_section: list[int] | tuple[int, ...] = (16, 24, 24),
        mrope_interleaved: bool = False,
        is_neox_style: bool = True,
    ) -> None:
        super().__init__()
        self.head_size, self.rotary_dim = head_size, rotary_dim
        self.section = tuple(mrope_section)
        self.styles = mrope_interleaved, is_neox_style

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
        q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
        T, D, R = q.shape[0], self.head_size, self.rotary_dim
        if T == 0:
            return {"q": q_out, "k": k_out}
        Hq, Hkv = q.shape[1] // D, k.shape[1] // D
        config = _config(
            token_count=T, num_query_heads=Hq, num_kv_heads=Hkv, head_size=D, rotary_dim=R,
            q_width=Hq * D, k_width=Hkv * D, frequencies=R // 2,
        )  # fmt: skip
        warps = int(config["num_warps"])
        many = max(1, MAX_ELEMENTS_PER_LANE * 32 * warps // triton.next_power_of_2(D))
        heads = min(int(config["heads"]), triton.next_power_of_2(Hq), many)
        tokens = min(int(config["tokens"]), many // heads)
        _mrope[(triton.cdiv(T, tokens), triton.cdiv(Hq, heads) + triton.cdiv(Hkv, heads))](
            *(q_out, k_out, q, k, cos, sin, T, Hq, Hkv, D, *self.section, q.stride(0), k.stride(0)),
            *(*cos.stride(), *sin.stride()),
            HALF=R // 2,
            HALF_BLOCK=triton.next_power_of_2(R // 2),
            REST=triton.next_power_of_2(D - R) if D > R else 0,
            TOKENS=tokens,
            HEADS=heads,
            INTERLEAVED=self.styles[0],
            NEOX=self.styles[1],
            num_warps=warps,
        )
        return {"q": q_out, "k": k_out}


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
