import math

import torch
import torch.nn as nn
import triton
import triton.language as tl

TWO_PI = 2 * math.pi
TABLE = [math.sin(TWO_PI * i / 16) ** 2 for i in range(16)]


@triton.jit
def _window(y, x, window, n, L, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    v = tl.load(x + i, i < n, other=0.0) * tl.load(window + i % L, i < n, other=0.0)
    tl.store(y + i, v, i < n)


class ModelNew(nn.Module):
    """Multiplies each frame by a Hann window."""

    def __init__(self, length: int = 512):
        super().__init__()
        phase = torch.arange(length, dtype=torch.float64) * (TWO_PI / length)
        self.register_buffer("window", (0.5 - 0.5 * torch.cos(phase)).float())

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        frames = frames.contiguous()
        y = torch.empty_like(frames)
        n, length = frames.numel(), self.window.numel()
        if frames.shape[-1] != length:
            raise ValueError(f"frames of {length} only")
        _window[(triton.cdiv(n, 1024),)](y, frames, self.window, n, length, B=1024)
        return y


def get_inputs():
    return [torch.randn(32, 512)]


def get_init_inputs():
    return [512]
