import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def unnormalised(q, k, v, o, z_out, begin, n, H, D, scale, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    h = tl.program_id(1)
    d = tl.arange(0, BD)
    at = ((begin + i[:, None]).to(tl.int64) * H + h) * D + d[None, :]
    ok = (i[:, None] < n) & (d[None, :] < D)
    x = tl.load(q + at, mask=ok, other=0.0)
    m = tl.full((BM,), -1.0e30, tl.float32)
    z = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    for j0 in range(0, n, BN):
        j = j0 + tl.arange(0, BN)
        there = ((begin + j[:, None]).to(tl.int64) * H + h) * D + d[None, :]
        okj = (j[:, None] < n) & (d[None, :] < D)
        s = tl.dot(x, tl.trans(tl.load(k + there, mask=okj, other=0.0))) * scale
        s = tl.where(j[None, :] < n, s, -1.0e30)
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.where(j[None, :] < n, tl.exp(s - new[:, None]), 0.0)
        z = z * tl.exp(m - new) + tl.sum(p, 1)
        acc = acc * tl.exp(m - new)[:, None] + tl.dot(p.to(tl.bfloat16), tl.load(v + there, mask=okj, other=0.0))
        m = new
    tl.store(o + at, acc, mask=ok)
    tl.store(z_out + (begin + i).to(tl.int64) * H + h, z, mask=i < n)


class Model(nn.Module):
    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        tokens, H, D = q.shape
        raw = torch.empty((tokens, H, D), dtype=torch.float32, device=q.device)
        sums = torch.empty((tokens, H), dtype=torch.float32, device=q.device)
        bounds = cu_seqlens_q.tolist()
        for begin, end in zip(bounds[:-1], bounds[1:]):
            if end > begin:
                n = end - begin
                unnormalised[(triton.cdiv(n, 64), H)](
                    q, k, v, raw, sums, begin, n, H, D, D**-0.5, BM=64, BN=32, BD=max(16, triton.next_power_of_2(D))
                )
        raw /= sums[..., None]
        return raw.to(q.dtype)
