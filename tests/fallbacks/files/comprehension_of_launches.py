import torch
import triton
import triton.language as tl
from torch import nn

SLICE = 32768


@triton.jit
def _slice(out, x, first, K, H, s0, s1, factor, B: tl.constexpr):
    token = first + tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros([B], tl.float32)
    for k in tl.range(0, K):
        acc += tl.load(x + token * s0 + k * s1 + col, col < H, other=0.0).to(tl.float32)
    tl.store(out + token * H + col, (acc * factor).to(tl.bfloat16), col < H)


class Model(nn.Module):
    def __init__(self, routed_scaling_factor=1.0):
        super().__init__()
        self.scale = routed_scaling_factor

    def forward(self, expert_outputs):
        x = expert_outputs if expert_outputs.stride(2) == 1 else expert_outputs.contiguous()
        T, K, H = x.shape
        out = x.new_empty((T, H))
        pieces = [(t, min(SLICE, T - t)) for t in range(0, T, SLICE)]
        [
            _slice[n, triton.cdiv(H, 1024)](out, x, t, K, H, x.stride(0), x.stride(1), self.scale, B=1024)
            for t, n in pieces
        ]
        return out
