"""gate: shapes
Ends the width's frequencies where the height's end: production has as many of both.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _turn(
    out,
    x,
    token,
    head,
    i,
    cos,
    sin,
    T,
    heads,
    D,
    x_stride,
    HALF: tl.constexpr,
    NEOX: tl.constexpr,
    REST: tl.constexpr,
):
    """Rotate the first 2 HALF elements of these heads, and copy the others."""
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
    tl.store(target + first, (a * cos - b * sin).to(tl.bfloat16), inside)
    tl.store(target + second, (b * cos + a * sin).to(tl.bfloat16), inside)
    if REST > 0:
        element = 2 * HALF + tl.arange(0, REST)[None, None, :]
        inside = present & (element < D)
        tl.store(target + element, tl.load(source + element, inside, other=0.0), inside)


@triton.jit
def _mrope(
    q_out,
    k_out,
    q,
    k,
    cos,
    sin,
    T,
    Hq,
    Hkv,
    D,
    time,
    height,
    width,
    q_stride,
    k_stride,
    cos_axis,
    cos_token,
    cos_frequency,
    sin_axis,
    sin_token,
    sin_frequency,
    INTERLEAVED: tl.constexpr,
    NEOX: tl.constexpr,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    head = tl.arange(0, HEADS)[None, :, None]
    i = tl.arange(0, BLOCK)[None, None, :]
    if INTERLEAVED:
        axis = tl.where((i % 3 == 1) & (i <= 3 * height), 1, 0)
        axis = tl.where((i % 3 == 2) & (i <= 3 * height), 2, axis)
    else:
        axis = tl.where(i < time, 0, tl.where(i < time + height, 1, 2))
    axis = axis.to(tl.int64)
    inside = (token < T) & (i < HALF)
    c = tl.load(cos + axis * cos_axis + token * cos_token + i * cos_frequency, inside, other=0.0)
    s = tl.load(sin + axis * sin_axis + token * sin_token + i * sin_frequency, inside, other=0.0)
    block = tl.program_id(1)
    q_blocks = tl.cdiv(Hq, HEADS)
    if block < q_blocks:
        _turn(q_out, q, token, block * HEADS + head, i, c, s, T, Hq, D, q_stride, HALF, NEOX, REST)
    else:
        head += (block - q_blocks) * HEADS
        _turn(k_out, k, token, head, i, c, s, T, Hkv, D, k_stride, HALF, NEOX, REST)


class Model(nn.Module):
    def __init__(
        self,
        head_size: int,
        rotary_dim: int,
        mrope_section: list[int] | tuple[int, ...] = (16, 24, 24),
        mrope_interleaved: bool = False,
        is_neox_style: bool = True,
    ) -> None:
        super().__init__()
        self.head_size = head_size
        self.half = rotary_dim // 2
        self.section = tuple(mrope_section)
        self.interleaved = mrope_interleaved
        self.neox = is_neox_style

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
        q_out, k_out = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k))
        T, D = q.shape[0], self.head_size
        if T > 0:
            Hq, Hkv = q.shape[1] // D, k.shape[1] // D
            block = triton.next_power_of_2(self.half)
            heads = min(triton.next_power_of_2(Hq), max(1, 1024 // block))
            tokens = min(16, max(1, 4096 // (heads * block)))
            rest = D - 2 * self.half
            _mrope[(triton.cdiv(T, tokens), triton.cdiv(Hq, heads) + triton.cdiv(Hkv, heads))](
                q_out,
                k_out,
                q,
                k,
                cos,
                sin,
                T,
                Hq,
                Hkv,
                D,
                *self.section,
                q.stride(0),
                k.stride(0),
                *cos.stride(),
                *sin.stride(),
                INTERLEAVED=self.interleaved,
                NEOX=self.neox,
                HALF=self.half,
                REST=triton.next_power_of_2(rest) if rest else 0,
                TOKENS=tokens,
                HEADS=heads,
                BLOCK=block,
                num_warps=max(1, min(8, tokens * heads * block // 512)),
            )
        return {"q": q_out, "k": k_out}
