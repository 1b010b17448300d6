from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _kernel(out_ptr, in_ptr, weight_ptr, hidden, in_stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offs = tl.arange(0, BLOCK)
    mask = offs < hidden
    data = tl.load(in_ptr + row * in_stride + offs, mask=mask, other=0.0).to(tl.float32)
    gain = tl.load(weight_ptr + offs, mask=mask, other=0.0).to(tl.float32)
    inv = tl.math.rsqrt(tl.sum(data * data, axis=0) / hidden + eps)
    tl.store(out_ptr + row * hidden + offs, (data * inv * gain).to(out_ptr.dtype.element_ty), mask=mask)


class Launcher:
    """Remembers the launch parameters of each width."""

    def __init__(self, eps: float) -> None:
        self.eps = eps
        self.plans: dict[int, tuple[int, int]] = {}

    def plan(self, hidden: int) -> tuple[int, int]:
        if hidden not in self.plans:
            block = triton.next_power_of_2(hidden)
            self.plans[hidden] = block, min(16, max(1, block // 512))
        return self.plans[hidden]

    def __call__(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows, hidden = x.shape
        out = torch.empty((rows, hidden), dtype=x.dtype, device=x.device)
        block, warps = self.plan(hidden)
        if rows:
            _kernel[(rows,)](out, x, weight, hidden, x.stride(0), self.eps, BLOCK=block, num_warps=warps)
        return out


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.launch = Launcher(eps)

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.launch(x if x.stride(-1) == 1 else x.contiguous(), weight.contiguous())
