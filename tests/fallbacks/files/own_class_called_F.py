import torch
import torch.nn as nn
import triton
import triton.language as tl


class F:
    """Our functional layer; same names as torch.nn.functional, none of its code."""

    @triton.jit
    def _silu(out, x, width, pitch, other, other_pitch, GATED: tl.constexpr, B: tl.constexpr):
        r = tl.program_id(0).to(tl.int64)
        c = tl.program_id(1) * B + tl.arange(0, B)
        v = tl.load(x + r * pitch + c, c < width, other=0.0).to(tl.float32)
        y = (v / (1.0 + tl.exp(-v))).to(tl.bfloat16)
        if GATED:
            y = y * tl.load(other + r * other_pitch + c, c < width, other=0.0)
        tl.store(out + r * width + c, y, c < width)

    @staticmethod
    def silu(x, mul=None):
        rows, width = x.shape
        out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
        if rows:
            gate = x if mul is None else mul
            F._silu[(rows, triton.cdiv(width, 512))](
                out, x, width, x.stride(0), gate, gate.stride(0), GATED=mul is not None, B=512
            )
        return out


class Model(nn.Module):
    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        if flat.shape[1] == 1:
            return F.silu(flat).view(x.shape)
        gate, up = flat.chunk(2, dim=-1)
        return F.silu(gate, mul=up).view(*x.shape[:-1], -1)
