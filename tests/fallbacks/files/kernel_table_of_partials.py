import functools

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _k(y, x, F, PLAIN: tl.constexpr, ROWS: tl.constexpr, B: tl.constexpr, R):
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    c = tl.program_id(1) * B + tl.arange(0, B)[None, :]
    m = (r < R) & (c < F)
    W = F if PLAIN else 2 * F
    g = tl.load(x + r * W + c, m, other=0.0).to(tl.float32)
    v = (g / (1.0 + tl.exp(-g))).to(tl.bfloat16)
    if not PLAIN:
        v = v * tl.load(x + r * W + F + c, m, other=0.0)
    tl.store(y + r * F + c, v, m)


def _run(y, x, *, rows_per_program, block, warps):
    R, F = y.shape
    grid = (triton.cdiv(R, rows_per_program), triton.cdiv(F, block))
    _k[grid](y, x, F, PLAIN=x.shape[1] == 1, ROWS=rows_per_program, B=block, R=R, num_warps=warps)


TABLE = (
    (16, functools.partial(_run, rows_per_program=64, block=16, warps=2)),
    (256, functools.partial(_run, rows_per_program=8, block=256, warps=4)),
    (float("inf"), functools.partial(_run, rows_per_program=1, block=1024, warps=4)),
)


class Model(nn.Module):
    def forward(self, x):
        last = x.shape[-1]
        y = torch.empty((*x.shape[:-1], max(1, last // 2)), dtype=x.dtype, device=x.device)
        if y.numel():
            launch = next(function for limit, function in TABLE if y.shape[-1] <= limit)
            launch(y.view(-1, y.shape[-1]), x.reshape(-1, last).contiguous())
        return y
