import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _apply(out, x, cos, sin, N, D, pitch, HALF: tl.constexpr, W: tl.constexpr):
    t, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, W)
    turned = d < 2 * HALF
    c = tl.load(cos + t * HALF + d % HALF, turned, other=1.0)
    s = tl.load(sin + t * HALF + d % HALF, turned, other=0.0)
    src = x + t * pitch + h * D
    a = tl.load(src + d, d < D, other=0.0).to(tl.float32)
    b = tl.load(src + tl.where(d < HALF, d + HALF, d - HALF), turned, other=0.0).to(tl.float32)
    y = a * c + tl.where(d < HALF, -b, b) * s
    tl.store(out + (t * N + h) * D + d, y.to(out.dtype.element_ty), d < D)


class Model(nn.Module):
    def __init__(self, num_heads, num_kv_heads, head_dim, rope_dim=128, rope_base=10000.0):
        super().__init__()
        self.split = (num_heads, num_kv_heads, num_kv_heads)
        self.head_dim, self.half = head_dim, rope_dim // 2
        self.inverse = [rope_base ** (-i / self.half) for i in range(self.half)]

    def forward(self, qkv, positions, qkv_bias=None):
        if qkv_bias is not None:
            raise NotImplementedError("bias")
        T, D = qkv.shape[0], self.head_dim
        inverse = torch.tensor(self.inverse, dtype=torch.float32, device=qkv.device)
        angles = torch.outer(positions.float(), inverse)
        cos, sin = angles.cos(), angles.sin()
        outputs = []
        for index, part in enumerate(qkv.contiguous().view(T, -1, D).split(self.split, dim=1)):
            if index == 2:
                outputs.append(part.contiguous())
                continue
            out = torch.empty((T, part.shape[1], D), dtype=qkv.dtype, device=qkv.device)
            if T:
                _apply[(T, part.shape[1])](
                    out,
                    part,
                    cos,
                    sin,
                    part.shape[1],
                    D,
                    part.stride(0),
                    self.half,
                    triton.next_power_of_2(D),
                )
            outputs.append(out)
        return tuple(outputs)
