import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _rope(
    dst,
    src,
    bias,
    pos,
    freq,
    heads,
    D,
    s_tok,
    HALF: tl.constexpr,
    P: tl.constexpr,
    W: tl.constexpr,
    B: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1)
    d = tl.arange(0, W)
    live = d < D
    if HALF > 0:
        partner = tl.where(d < HALF, d + HALF, d - HALF)
        sign = tl.where(d < HALF, -1.0, 1.0)
        turned = d < 2 * HALF
        angle = tl.load(pos + t * P).to(tl.float32) * tl.load(freq + d % HALF, turned, other=0.0)
    else:
        partner = d
    a = tl.load(src + t * s_tok + h * D + d, live, other=0.0).to(tl.float32)
    b = tl.load(src + t * s_tok + h * D + partner, live, other=0.0).to(tl.float32)
    if B:
        a += tl.load(bias + h * D + d, live, other=0.0).to(tl.float32)
        b += tl.load(bias + h * D + partner, live, other=0.0).to(tl.float32)
    if HALF > 0:
        a = tl.where(turned, a * tl.cos(angle) + sign * b * tl.sin(angle), a)
    tl.store(dst + (t * heads + h) * D + d, a.to(dst.dtype.element_ty), live)


class Model(nn.Module):
    def __init__(self, num_heads, num_kv_heads, head_dim, rope_dim=128, rope_base=10000.0):
        super().__init__()
        self.counts = (num_heads, num_kv_heads, num_kv_heads)
        self.head_dim, self.half = head_dim, rope_dim // 2
        steps = torch.arange(0, rope_dim, 2, dtype=torch.float64) / rope_dim
        self.register_buffer("freq", torch.pow(rope_base, -steps).to(torch.float32), persistent=False)

    def forward(self, qkv, positions, qkv_bias=None):
        qkv = qkv.contiguous()
        freq = self.freq.to(qkv.device)
        T, D = qkv.shape[0], self.head_dim
        parts = qkv.split([n * D for n in self.counts], dim=-1)
        biases = (None,) * 3 if qkv_bias is None else qkv_bias.split([n * D for n in self.counts])
        results = []
        for n, part, bias, turn in zip(self.counts, parts, biases, (True, True, False)):
            out = torch.empty((T, n, D), dtype=qkv.dtype, device=qkv.device)
            if T:
                _rope[(T, n)](
                    out,
                    part,
                    part if bias is None else bias,
                    positions,
                    freq,
                    n,
                    D,
                    qkv.stride(0),
                    HALF=self.half if turn else 0,
                    P=positions.stride(0),
                    W=triton.next_power_of_2(D),
                    B=bias is not None,
                )
            results.append(out)
        return tuple(results)
