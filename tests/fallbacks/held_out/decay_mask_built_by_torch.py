import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def chunk_kernel(q, k, v, h, g, decay, o, scale, T, HQ, HV, K, V, chunks, C: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):
    c = tl.program_id(0)
    b = (tl.program_id(1) // HV).to(tl.int64)
    hv = tl.program_id(1) % HV
    hq = hv // (HV // HQ)
    i = tl.arange(0, C)
    t = c * C + i
    d = tl.arange(0, BK)
    n = tl.program_id(2) * BV + tl.arange(0, BV)
    ok = t < T
    okk = ok[:, None] & (d[None, :] < K)
    bq = tl.load(q + ((b * T + t[:, None]) * HQ + hq) * K + d[None, :], mask=okk, other=0.0)
    bk = tl.load(k + ((b * T + t[:, None]) * HQ + hq) * K + d[None, :], mask=okk, other=0.0)
    D = tl.load(decay + (((b * HV + hv) * chunks + c) * C + i[:, None]) * C + i[None, :])
    A = (tl.dot(bq, tl.trans(bk)) * D).to(tl.bfloat16)
    bv = tl.load(v + ((b * T + t[:, None]) * HV + hv) * V + n[None, :], mask=ok[:, None] & (n[None, :] < V), other=0.0)
    S = tl.load(
        h + (((b * chunks + c) * HV + hv) * K + d[:, None]) * V + n[None, :],
        mask=(d[:, None] < K) & (n[None, :] < V), other=0.0,
    )
    gt = tl.load(g + (b * T + t) * HV + hv, mask=ok, other=0.0)
    out = (tl.dot(bq, S) * tl.exp(gt)[:, None] + tl.dot(A, bv)) * scale
    tl.store(o + ((b * T + t[:, None]) * HV + hv) * V + n[None, :], out.to(tl.bfloat16), mask=ok[:, None] & (n[None, :] < V))


def decay_mask(g, chunk):
    """[B, HV, chunks, C, C]: what a token still sees of another one of its chunk."""
    B, T, HV = g.shape
    chunks = -(-T // chunk)
    padded = g.new_zeros((B, chunks * chunk, HV))
    padded[:, :T] = g
    rows = padded.view(B, chunks, chunk, HV).permute(0, 3, 1, 2)
    difference = rows.unsqueeze(-1) - rows.unsqueeze(-2)
    return difference.exp().tril().contiguous()


class Model(nn.Module):
    def __init__(self, chunk_size=64, scale=None):
        super().__init__()
        self.chunk_size, self.scale = chunk_size, scale

    def forward(self, q, k, v, h, g):
        B, T, HQ, K = q.shape
        HV, V = v.shape[2:]
        q, k, v, h, g = (t.contiguous() for t in (q, k, v, h, g))
        out = torch.empty_like(v)
        if T == 0:
            return out
        chunks = -(-T // self.chunk_size)
        decay = decay_mask(g, self.chunk_size)
        bv = 32
        chunk_kernel[(chunks, B * HV, triton.cdiv(V, bv))](
            q, k, v, h, g, decay, out, self.scale or K**-0.5, T, HQ, HV, K, V, chunks,
            C=self.chunk_size, BK=max(16, triton.next_power_of_2(K)), BV=bv,
        )
        return out
