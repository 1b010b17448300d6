import contextvars
from functools import cached_property

import torch
import triton
import triton.language as tl
from torch import nn

warps = contextvars.ContextVar("warps", default=4)


@triton.jit
def unit_rows(x, y, sx, H, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + r * sx + c, mask=c < H, other=0.0).to(tl.float32)
    tl.store(y + r * H + c, (v * (1.0 / tl.sqrt(tl.sum(v * v, 0) + eps))).to(y.dtype.element_ty), mask=c < H)


class Launcher:
    """`launcher @ options` fixes meta-parameters, `[grid]` the grid, and the call launches."""

    def __init__(self, kernel, options=None, grid=None):
        self.kernel, self.options, self.grid = kernel, dict(options or {}), grid

    def __matmul__(self, options):
        return Launcher(self.kernel, {**self.options, **options}, self.grid)

    def __getitem__(self, grid):
        return Launcher(self.kernel, self.options, grid if isinstance(grid, tuple) else (grid,))

    def __call__(self, *tensors_and_numbers):
        return self.kernel[self.grid](*tensors_and_numbers, num_warps=warps.get(), **self.options)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size, self.eps = hidden_size, eps

    @cached_property
    def launcher(self):
        return Launcher(unit_rows) @ {"BLOCK": triton.next_power_of_2(self.hidden_size)}

    @torch.compiler.disable
    def forward(self, x):
        token = warps.set(8 if self.hidden_size > 2048 else 4)
        try:
            x = x if x.stride(1) == 1 else x.contiguous()
            y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            if rows := x.shape[0]:
                self.launcher[rows](x, y, x.stride(0), self.hidden_size, self.eps)
            return y
        finally:
            warps.reset(token)
