import torch
import triton
import triton.language as tl
from torch import nn

MAX_POSITION = 131073


@triton.jit
def _turn_heads(
    out, x, cos, sin, pos, n_heads, D, x_stride, ROT: tl.constexpr, HB: tl.constexpr, REST: tl.constexpr
):
    t = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    HALF: tl.constexpr = ROT // 2
    i = tl.arange(0, HB)
    live = i < HALF
    p = tl.load(pos + t).to(tl.int64)
    c = tl.load(cos + p * HALF + i, live, other=0.0)
    s = tl.load(sin + p * HALF + i, live, other=0.0)
    src = x + t * x_stride + h * D
    dst = out + (t * n_heads + h) * D
    a = tl.load(src + i, live, other=0.0).to(tl.float32)
    b = tl.load(src + HALF + i, live, other=0.0).to(tl.float32)
    tl.store(dst + i, (a * c - b * s).to(out.dtype.element_ty), live)
    tl.store(dst + HALF + i, (b * c + a * s).to(out.dtype.element_ty), live)
    if REST > 0:
        j = ROT + tl.arange(0, REST)
        tl.store(dst + j, tl.load(src + j, j < D, other=0.0), j < D)


class Model(nn.Module):
    def __init__(
        self, num_heads: int, num_kv_heads: int, head_dim: int, rope_dim: int = 128, rope_base: float = 1e4
    ):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim, self.rope_dim = (
            num_heads,
            num_kv_heads,
            head_dim,
            rope_dim,
        )
        inv = rope_base ** (-torch.arange(0, rope_dim, 2).float() / rope_dim)
        angles = torch.outer(torch.arange(MAX_POSITION).float(), inv)
        self.register_buffer("cos", torch.cos(angles))
        self.register_buffer("sin", torch.sin(angles))

    def _rotate(self, part, positions):
        T, n, D = part.shape
        out = torch.empty((T, n, D), dtype=part.dtype, device=part.device)
        rest = D - self.rope_dim
        if T > 0:
            _turn_heads[(T, n)](
                out,
                part,
                self.cos,
                self.sin,
                positions,
                n,
                D,
                part.stride(0),
                ROT=self.rope_dim,
                HB=triton.next_power_of_2(self.rope_dim // 2),
                REST=triton.next_power_of_2(rest) if rest else 0,
            )
        return out

    def forward(self, qkv, positions, qkv_bias=None):
        if qkv_bias is not None:
            raise NotImplementedError("no bias in this kernel")
        if self.cos.device != qkv.device:
            self.cos, self.sin = self.cos.to(qkv.device), self.sin.to(qkv.device)
        H, G = self.num_heads, self.num_kv_heads
        heads = qkv.contiguous().unflatten(-1, (H + 2 * G, self.head_dim))
        q, k, v = heads.split([H, G, G], dim=1)
        positions = positions.contiguous()
        return self._rotate(q, positions), self._rotate(k, positions), v.contiguous()
