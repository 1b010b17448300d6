from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
import triton
import triton.language as tl
from torch import nn


@dataclass(frozen=True, slots=True)
class Config:
    ROWS: int
    BLOCK: int
    num_warps: int = 4

    @classmethod
    def of(cls, width: int) -> Config:
        block = triton.next_power_of_2(width)
        return cls(max(1, 2048 // block), block, 8 if block > 2048 else 4)

    def grid(self, rows: int) -> tuple[int]:
        return (triton.cdiv(rows, self.ROWS),)


@triton.jit
def l2_tile(out, x, T, H, pitch, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    col = tl.arange(0, BLOCK)
    inside = (row[:, None] < T) & (col[None, :] < H)
    v = tl.load(x + row[:, None] * pitch + col[None, :], inside, other=0.0).to(tl.float32)
    inv = tl.rsqrt(tl.sum(v * v, axis=1) + eps)
    tl.store(out + row[:, None] * H + col[None, :], (v * inv[:, None]).to(tl.bfloat16), inside)


class Model(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.config = Config.of(hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if x.shape[0]:
            grid = self.config.grid(x.shape[0])
            l2_tile[grid](out, x, *x.shape, x.stride(0), self.eps, **asdict(self.config))
        return out
