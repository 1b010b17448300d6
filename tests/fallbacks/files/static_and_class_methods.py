import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _body(out, inp, d, in_pitch, BLOCK: tl.constexpr):
    tok = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    m = i < d
    a = tl.load(inp + tok * in_pitch + i, mask=m, other=0.0).to(tl.float32)
    b = tl.load(inp + tok * in_pitch + d + i, mask=m, other=0.0)
    tl.store(out + tok * d + i, (a / (1.0 + tl.exp(-a))).to(tl.bfloat16) * b, mask=m)


class Ops:
    block = 1024

    @staticmethod
    def grid(tokens, d, block):
        return tokens, (d + block - 1) // block

    @classmethod
    def silu_and_mul(cls, out, inp):
        tokens, d = out.shape
        _body[cls.grid(tokens, d, cls.block)](out, inp, d, inp.stride(0), BLOCK=cls.block)


class Model(nn.Module):
    def forward(self, x):
        if x.shape[-1] == 1:
            raise NotImplementedError
        flat = torch.flatten(x, 0, -2).contiguous()
        out = torch.empty(flat.shape[0], flat.shape[1] // 2, dtype=x.dtype, device=x.device)
        if out.shape[0] > 0:
            Ops.silu_and_mul(out, flat)
        return out.view(*x.shape[:-1], -1)
