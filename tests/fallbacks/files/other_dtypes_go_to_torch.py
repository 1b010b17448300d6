import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _rope(out, x, pos, N, D, x_stride, log_base, ROT: tl.constexpr, W: tl.constexpr):
    t, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    d = tl.arange(0, W)
    half = ROT // 2
    other = tl.where(d < half, d + half, d - half)
    turned = d < ROT
    freq = tl.exp2(-(d % half).to(tl.float32) * (log_base / half))
    angle = tl.load(pos + t).to(tl.float32) * freq
    src = x + t * x_stride + h * D
    a = tl.load(src + d, d < D, other=0.0).to(tl.float32)
    b = tl.load(src + other, turned & (d < D), other=0.0).to(tl.float32)
    y = a * tl.cos(angle) + tl.where(d < half, -b, b) * tl.sin(angle)
    tl.store(out + (t * N + h) * D + d, tl.where(turned, y, a).to(out.dtype.element_ty), d < D)


class Model(nn.Module):
    def __init__(self, num_heads, num_kv_heads, head_dim, rope_dim=128, rope_base=10000.0):
        super().__init__()
        self.heads = [num_heads, num_kv_heads, num_kv_heads]
        self.head_dim, self.rope_dim, self.rope_base = head_dim, rope_dim, rope_base

    def _eager(self, x, positions):
        half = self.rope_dim // 2
        inverse = self.rope_base ** (-torch.arange(half, device=x.device).float() / half)
        angle = (positions.float()[:, None] * inverse)[:, None, :]
        cos, sin = angle.cos(), angle.sin()
        a, b, rest = x.float().split([half, half, x.shape[-1] - 2 * half], dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=-1).to(x.dtype)

    def _fused(self, x, positions):
        import math

        T, N, D = x.shape
        out = torch.empty((T, N, D), dtype=x.dtype, device=x.device)
        if T:
            numbers = N, D, x.stride(0), math.log2(self.rope_base)
            _rope[(T, N)](out, x, positions, *numbers, ROT=self.rope_dim, W=triton.next_power_of_2(D))
        return out

    def forward(self, qkv, positions, qkv_bias=None):
        if qkv_bias is not None:
            raise NotImplementedError("bias")
        x = qkv.contiguous().view(qkv.shape[0], -1, self.head_dim)
        q, k, v = x.split(self.heads, dim=1)
        rotate = self._fused if qkv.dtype == torch.bfloat16 else self._eager
        positions = positions.contiguous()
        return rotate(q, positions), rotate(k, positions), v.contiguous()
