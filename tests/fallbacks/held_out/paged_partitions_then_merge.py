import os

import torch
import triton
import triton.language as tl
from torch import nn

PARTITION = int(os.getenv("PAGED_PARTITION", "512"))
assert PARTITION % 64 == 0


@triton.jit
def paged_partition(
    q, kc, vc, tables, lens, tmp, high, denom, scale, sq0, sq1, st, kv_heads, group, D, X, BS, parts,
    PART: tl.constexpr, G: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr,
):
    s = tl.program_id(0).to(tl.int64)
    kvh = tl.program_id(1)
    part = tl.program_id(2)
    n_keys = tl.load(lens + s)
    lo = part * PART
    hi = tl.minimum(n_keys, lo + PART)
    g = tl.arange(0, G)
    d = tl.arange(0, BD)
    head = kvh * group + g
    okq = (g[:, None] < group) & (d[None, :] < D)
    x = tl.load(q + s * sq0 + head[:, None] * sq1 + d[None, :], mask=okq, other=0.0)
    m = tl.full((G,), -1.0e30, tl.float32)
    z = tl.zeros((G,), tl.float32)
    acc = tl.zeros((G, BD), tl.float32)
    for n0 in range(lo, hi, BN):
        n = n0 + tl.arange(0, BN)
        live = n < hi
        block = tl.load(tables + s * st + n // BS, mask=live, other=0).to(tl.int64)
        slot = n % BS
        k_at = ((block[None, :] * kv_heads + kvh) * (D // X) + (d // X)[:, None]) * BS * X
        k_at += slot[None, :] * X + (d % X)[:, None]
        k = tl.load(kc + k_at, mask=live[None, :] & (d[:, None] < D), other=0.0)
        score = tl.where(live[None, :], tl.dot(x, k) * scale, -1.0e30)
        new = tl.maximum(m, tl.max(score, 1))
        e = tl.where(live[None, :], tl.exp(score - new[:, None]), 0.0)
        fix = tl.exp(m - new)
        v_at = ((block[:, None] * kv_heads + kvh) * D + d[None, :]) * BS + slot[:, None]
        v = tl.load(vc + v_at, mask=live[:, None] & (d[None, :] < D), other=0.0)
        z = z * fix + tl.sum(e, 1)
        acc = acc * fix[:, None] + tl.dot(e.to(v.dtype), v)
        m = new
    at = (s * kv_heads * group + head) * parts + part
    tl.store(high + at, m, mask=g < group)
    tl.store(denom + at, z, mask=g < group)
    tl.store(tmp + at[:, None] * D + d[None, :], acc, mask=okq)


@triton.jit
def paged_merge(tmp, high, denom, out, D, parts, BD: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    d = tl.arange(0, BD)
    top = -1.0e30
    for p in range(parts):
        top = tl.maximum(top, tl.load(high + row * parts + p))
    acc = tl.zeros((BD,), tl.float32)
    z = 0.0
    for p in range(parts):
        w = tl.exp(tl.load(high + row * parts + p) - top)
        z += w * tl.load(denom + row * parts + p)
        acc += w * tl.load(tmp + (row * parts + p) * D + d, mask=d < D, other=0.0)
    tl.store(out + row * D + d, (acc / tl.where(z > 0, z, 1.0)).to(out.dtype.element_ty), mask=d < D)


class Model(nn.Module):
    def forward(self, query, k_cache, v_cache, block_tables, seq_lens):
        if torch.finfo(query.dtype).bits != 16:
            raise NotImplementedError(query.dtype)
        seqs, heads, D = query.shape
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        if seqs == 0:
            return out
        _, kv_heads, _, BS, X = k_cache.shape
        group, rest = divmod(heads, kv_heads)
        assert rest == 0 and k_cache.numel() <= torch.iinfo(torch.int64).max
        query = query if query.stride(-1) == 1 else query.contiguous()
        k_cache, v_cache = k_cache.contiguous(), v_cache.contiguous()
        longest = int(seq_lens.max().item())
        parts = max(1, triton.cdiv(longest, PARTITION))
        f32 = {"dtype": torch.float32, "device": query.device}
        tmp = torch.empty(seqs, heads, parts, D, **f32)
        high, denom = torch.empty(2, seqs, heads, parts, **f32).unbind(0)
        paged_partition[(seqs, kv_heads, parts)](
            query, k_cache, v_cache, block_tables, seq_lens, tmp, high, denom, D**-0.5,
            query.stride(0), query.stride(1), block_tables.stride(0), kv_heads, group, D, X, BS, parts,
            PART=PARTITION, G=max(16, triton.next_power_of_2(group)), BD=max(16, triton.next_power_of_2(D)), BN=64,
        )
        paged_merge[(seqs * heads,)](tmp, high, denom, out, D, parts, BD=triton.next_power_of_2(D))
        return out
