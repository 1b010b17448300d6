import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _attn(o, q, k, v, cu, H, D, scale, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    seq, head = tl.program_id(1), tl.program_id(2)
    lo = tl.load(cu + seq).to(tl.int64)
    n = tl.load(cu + seq + 1).to(tl.int64) - lo
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, BD)
    pitch = H * D
    base = lo * pitch + head * D
    qi = tl.load(q + base + i[:, None] * pitch + d[None, :], (i[:, None] < n) & (d[None, :] < D), other=0.0)
    m = tl.full([BM], -float("inf"), tl.float32)
    z = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    for start in range(0, n, BN):
        j = start + tl.arange(0, BN)
        at = base + j * pitch
        kj = tl.load(k + at[None, :] + d[:, None], (j[None, :] < n) & (d[:, None] < D), other=0.0)
        s = tl.dot(qi, kj) * scale
        s = tl.where(j[None, :] < n, s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        z = z * alpha + tl.sum(p, 1)
        vj = tl.load(v + at[:, None] + d[None, :], (j[:, None] < n) & (d[None, :] < D), other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(tl.bfloat16), vj)
        m = m_new
    out = acc / tl.where(z > 0, z, 1.0)[:, None]
    tl.store(
        o + base + i[:, None] * pitch + d[None, :], out.to(tl.bfloat16), (i[:, None] < n) & (d[None, :] < D)
    )


class Model(nn.Module):
    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        out = torch.empty_like(q)
        tokens, H, D = q.shape
        if tokens == 0:
            return out
        longest = int(cu_seqlens_q.diff().max())
        grid = (triton.cdiv(longest, 64), cu_seqlens_q.numel() - 1, H)
        width = max(16, triton.next_power_of_2(D))
        _attn[grid](out, q, k, v, cu_seqlens_q, H, D, D**-0.5, BM=64, BN=64, BD=width, num_stages=2)
        return out
