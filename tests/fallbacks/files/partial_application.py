import functools

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _reduce_experts(out, inp, K, H, s_tok, s_exp, factor, BLOCK: tl.constexpr):
    tok = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    for e in range(K):
        acc += tl.load(inp + tok * s_tok + e * s_exp + col, col < H, other=0.0).to(tl.float32)
    tl.store(out + tok * H + col, (acc * factor).to(tl.bfloat16), col < H)


def run(expert_outputs, *, factor, block, warps):
    T, K, H = expert_outputs.shape
    out = torch.empty((T, H), dtype=expert_outputs.dtype, device=expert_outputs.device)
    if T == 0:
        return out
    grid = (T, triton.cdiv(H, block))
    s = expert_outputs.stride()
    _reduce_experts[grid](out, expert_outputs, K, H, s[0], s[1], factor, BLOCK=block, num_warps=warps)
    return out


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0):
        super().__init__()
        self.run = functools.partial(run, factor=routed_scaling_factor, block=512, warps=4)

    def forward(self, expert_outputs):
        return self.run(expert_outputs.contiguous())
