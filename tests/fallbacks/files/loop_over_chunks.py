import torch
import triton
import triton.language as tl
from torch import nn

CHUNK_ROWS = 8192


@triton.jit
def _chunk(y, x, F, PLAIN: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * B + tl.arange(0, B)
    if PLAIN:
        g = tl.load(x + row * F + i, i < F, other=0.0).to(tl.float32)
        tl.store(y + row * F + i, (g * tl.sigmoid(g)).to(tl.bfloat16), i < F)
    else:
        g = tl.load(x + row * 2 * F + i, i < F, other=0.0).to(tl.float32)
        u = tl.load(x + row * 2 * F + F + i, i < F, other=0.0)
        tl.store(y + row * F + i, (g * tl.sigmoid(g)).to(tl.bfloat16) * u, i < F)


class Model(nn.Module):
    def forward(self, x):
        plain = x.shape[-1] == 1
        F = x.shape[-1] if plain else x.shape[-1] // 2
        flat = x.contiguous().view(-1, x.shape[-1])
        y = torch.empty((flat.shape[0], F), device=x.device, dtype=x.dtype)
        for source, target in zip(flat.split(CHUNK_ROWS), y.split(CHUNK_ROWS), strict=True):
            rows = source.shape[0]
            if rows == 0:
                break
            _chunk[(rows, triton.cdiv(F, 256))](target, source, F, PLAIN=plain, B=256)
        return y.view(x.shape[:-1] + (F,))
