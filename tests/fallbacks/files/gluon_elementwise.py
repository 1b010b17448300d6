import torch
import triton
from torch import nn
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def _silu_mul(out, x, F, x_stride, BLOCK: gl.constexpr, layout: gl.constexpr):
    row = gl.program_id(0).to(gl.int64)
    col = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, layout=layout)
    keep = col < F
    gate = gl.load(x + row * x_stride + col, mask=keep, other=0.0).to(gl.float32)
    up = gl.load(x + row * x_stride + F + col, mask=keep, other=0.0)
    y = (gate / (1.0 + gl.exp(-gate))).to(gl.bfloat16)
    gl.store(out + row * F + col, y * up, mask=keep)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = 1024
        self.layout = gl.BlockedLayout(
            size_per_thread=[8], threads_per_warp=[32], warps_per_cta=[4], order=[0]
        )

    def forward(self, x):
        *lead, last = x.shape
        if last == 1:
            raise NotImplementedError("plain silu")
        x = x.reshape(-1, last).contiguous()
        F = last // 2
        out = torch.empty((x.shape[0], F), dtype=x.dtype, device=x.device)
        if out.numel() > 0:
            grid = (x.shape[0], triton.cdiv(F, self.block))
            _silu_mul[grid](out, x, F, x.stride(0), self.block, self.layout, num_warps=4)
        return out.reshape(*lead, F)
