import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def rope_heads(
    qkv, pos, bias, inv, q, k, v, s0, HQ, HK, D, half, HAS_BIAS: tl.constexpr, BD: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, BD)
    ok = d < D
    partner = tl.where(d < half, d + half, tl.where(d < 2 * half, d - half, d))
    x = tl.load(qkv + t * s0 + h * D + d, mask=ok, other=0.0).to(tl.float32)
    y = tl.load(qkv + t * s0 + h * D + partner, mask=ok, other=0.0).to(tl.float32)
    if HAS_BIAS:
        x += tl.load(bias + h * D + d, mask=ok, other=0.0).to(tl.float32)
        y += tl.load(bias + h * D + partner, mask=ok, other=0.0).to(tl.float32)
    if h < HQ + HK:
        turn = d < 2 * half
        angle = tl.load(pos + t).to(tl.float32) * tl.load(inv + d % half, mask=turn, other=0.0)
        signed = tl.where(d < half, -y, y)
        x = tl.where(turn, x * tl.cos(angle) + signed * tl.sin(angle), x)
    if h < HQ:
        tl.store(q + (t * HQ + h) * D + d, x.to(q.dtype.element_ty), mask=ok)
    elif h < HQ + HK:
        tl.store(k + (t * HK + h - HQ) * D + d, x.to(k.dtype.element_ty), mask=ok)
    else:
        tl.store(v + (t * HK + h - HQ - HK) * D + d, x.to(v.dtype.element_ty), mask=ok)


class Model(nn.Module):
    inv_freq: torch.Tensor

    def __init__(self, num_heads, num_kv_heads, head_dim, rope_dim=128, rope_base=10000.0):
        super().__init__()
        self.heads = (num_heads, num_kv_heads, num_kv_heads)
        self.head_dim, self.half = head_dim, rope_dim // 2
        exponents = torch.arange(0, rope_dim, 2, dtype=torch.float64) / rope_dim
        self.register_buffer("inv_freq", (1.0 / rope_base**exponents).float(), persistent=False)

    def _outputs(self, like, tokens):
        sizes = [tokens * h * self.head_dim for h in self.heads]
        flat = torch.empty(0, dtype=like.dtype, device=like.device)
        torch.empty((sum(sizes),), out=flat)
        parts = flat.split_with_sizes(sizes)
        return tuple(p.view(tokens, h, self.head_dim) for p, h in zip(parts, self.heads))

    def forward(self, qkv, positions, qkv_bias=None):
        qkv = qkv if qkv.stride(1) == 1 else qkv.contiguous()
        tokens = len(positions)
        q, k, v = self._outputs(qkv, tokens)
        if tokens == 0:
            return q, k, v
        inv = self.inv_freq.to(qkv.device, non_blocking=True)
        rope_heads[(tokens, sum(self.heads))](
            qkv, positions, qkv if qkv_bias is None else qkv_bias.contiguous(), inv, q, k, v, qkv.stride(0),
            self.heads[0], self.heads[1], self.head_dim, self.half,
            HAS_BIAS=qkv_bias is not None, BD=triton.next_power_of_2(self.head_dim),
        )
        return q, k, v
