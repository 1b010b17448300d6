from typing import Tuple

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _which_sequence(cu, block, n_seqs, BQ):
    left = 0
    right = n_seqs
    while left < right:
        mid = (left + right) // 2
        if tl.load(cu + mid) // BQ + mid <= block:
            left = mid + 1
        else:
            right = mid
    return left - 1


@triton.jit
def unified(
    Q, K, V, O, Cu, Used, Table, scale, n_seqs, q0, q1, o0, o1, k0s, k1s, k2s, v0s, v1s, v2s, t0,
    GROUP, D, BS, BQ: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):
    block = tl.program_id(0)
    kvh = tl.program_id(1)
    seq = _which_sequence(Cu, block, n_seqs, BQ)
    start = tl.load(Cu + seq)
    len_q = tl.load(Cu + seq + 1) - start
    local = block - (start // BQ + seq)
    if local * BQ >= len_q:
        return
    used = tl.load(Used + seq)
    context = used - len_q
    i = tl.arange(0, BM)
    pos = local * BQ + i // GROUP
    head = kvh * GROUP + i % GROUP
    ok = (i < BQ * GROUP) & (pos < len_q)
    d = tl.arange(0, BD)
    okd = d < D
    at = (start + pos).to(tl.int64)
    q = tl.load(Q + at[:, None] * q0 + head[:, None] * q1 + d[None, :], mask=ok[:, None] & okd[None, :], other=0.0)
    m = tl.full((BM,), -1.0e30, tl.float32)
    z = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, BD), tl.float32)
    end = tl.minimum(used, context + (local + 1) * BQ)
    for n0 in range(0, end, BN):
        n = n0 + tl.arange(0, BN)
        page = tl.load(Table + seq.to(tl.int64) * t0 + n // BS, mask=n < end, other=0).to(tl.int64)
        k = tl.load(
            K + page[None, :] * k0s + (n % BS)[None, :] * k1s + kvh * k2s + d[:, None],
            mask=(n[None, :] < end) & okd[:, None], other=0.0,
        )
        seen = (n[None, :] <= context + pos[:, None]) & (n[None, :] < end)
        s = tl.where(seen, tl.dot(q, k) * scale, -1.0e30)
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.where(seen, tl.exp(s - new[:, None]), 0.0)
        fix = tl.exp(m - new)
        v = tl.load(
            V + page[:, None] * v0s + (n % BS)[:, None] * v1s + kvh * v2s + d[None, :],
            mask=(n[:, None] < end) & okd[None, :], other=0.0,
        )
        z = z * fix + tl.sum(p, 1)
        acc = acc * fix[:, None] + tl.dot(p.to(v.dtype), v)
        m = new
    acc = acc / tl.where(z > 0, z, 1.0)[:, None]
    tl.store(O + at[:, None] * o0 + head[:, None] * o1 + d[None, :], acc.to(O.dtype.element_ty), mask=ok[:, None] & okd[None, :])


def strides(t: torch.Tensor, *axes: int) -> Tuple[int, ...]:
    """The strides along `axes`; the last axis must be dense."""
    if t.stride(-1) != 1:
        raise ValueError("dense heads only")
    return tuple(t.stride()[axis] for axis in axes)


def as_int32(t: torch.Tensor) -> torch.Tensor:
    return t if t.dtype is torch.int32 else t.to(torch.int32)


class Model(nn.Module):
    def forward(self, q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table):
        q, k_cache, v_cache = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k_cache, v_cache))
        tokens, heads, D = q.shape
        _, BS, kv_heads, _ = k_cache.shape
        group = heads // kv_heads
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        n_seqs = seqused_k.numel()
        if tokens == 0:
            return out
        block_m = max(16, triton.next_power_of_2(group))
        block_q = block_m // group
        most_blocks = tokens // block_q + n_seqs
        unified[(most_blocks, kv_heads)](
            q, k_cache, v_cache, out, as_int32(cu_seqlens_q), as_int32(seqused_k), as_int32(block_table),
            D**-0.5, n_seqs, *strides(q, 0, 1), *strides(out, 0, 1), *strides(k_cache, 0, 1, 2),
            *strides(v_cache, 0, 1, 2), block_table.stride(0), group, D, BS,
            BQ=block_q, BM=block_m, BN=32, BD=max(16, triton.next_power_of_2(D)),
        )
        return out
