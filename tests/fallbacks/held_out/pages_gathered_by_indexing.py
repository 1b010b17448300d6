import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def dense_attention(q, k, v, o, start, len_q, len_k, HQ, HK, D, scale, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr):
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    h = tl.program_id(1)
    hk = h // (HQ // HK)
    d = tl.arange(0, BD)
    at = ((start + i[:, None]).to(tl.int64) * HQ + h) * D + d[None, :]
    ok = (i[:, None] < len_q) & (d[None, :] < D)
    x = tl.load(q + at, mask=ok, other=0.0)
    m = tl.full((BM,), -1.0e30, tl.float32)
    z = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    for j0 in range(0, len_k, BN):
        j = j0 + tl.arange(0, BN)
        there = (j[:, None].to(tl.int64) * HK + hk) * D + d[None, :]
        okj = (j[:, None] < len_k) & (d[None, :] < D)
        s = tl.dot(x, tl.trans(tl.load(k + there, mask=okj, other=0.0))) * scale
        seen = (j[None, :] <= len_k - len_q + i[:, None]) & (j[None, :] < len_k)
        s = tl.where(seen, s, -1.0e30)
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.where(seen, tl.exp(s - new[:, None]), 0.0)
        z = z * tl.exp(m - new) + tl.sum(p, 1)
        acc = acc * tl.exp(m - new)[:, None] + tl.dot(p.to(tl.bfloat16), tl.load(v + there, mask=okj, other=0.0))
        m = new
    tl.store(o + at, (acc / tl.where(z > 0, z, 1.0)[:, None]).to(tl.bfloat16), mask=ok)


class Model(nn.Module):
    def forward(self, q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table):
        q = q.contiguous()
        out = torch.empty_like(q)
        _, HQ, D = q.shape
        size, HK = k_cache.shape[1:3]
        bounds, used = cu_seqlens_q.tolist(), seqused_k.tolist()
        for i, n in enumerate(used):
            start, len_q = bounds[i], bounds[i + 1] - bounds[i]
            if len_q == 0:
                continue
            pages = block_table[i, : -(-n // size)].long()
            k = k_cache[pages].flatten(0, 1)[:n].contiguous()
            v = v_cache[pages].flatten(0, 1)[:n].contiguous()
            dense_attention[(triton.cdiv(len_q, 32), HQ)](
                q, k, v, out, start, len_q, n, HQ, HK, D, D**-0.5, BM=32, BN=32, BD=max(16, triton.next_power_of_2(D))
            )
        return out
