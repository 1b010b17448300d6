import itertools
import math

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def mla_stage1(
    Q, KV, Seq, Begin, Mid, Lse, scale, heads, sq_b, sq_h, skv, R, P, splits,
    BH: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BP: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    split = tl.program_id(2)
    n_keys = tl.load(Seq + b)
    base = tl.load(Begin + b).to(tl.int64)
    per = tl.cdiv(n_keys, splits)
    lo = split * per
    hi = tl.minimum(lo + per, n_keys)
    r = tl.arange(0, BR)
    p = tl.arange(0, BP)
    okh = h < heads
    qn = tl.load(Q + b * sq_b + h[:, None] * sq_h + r[None, :], mask=okh[:, None] & (r[None, :] < R), other=0.0)
    qp = tl.load(Q + b * sq_b + h[:, None] * sq_h + R + p[None, :], mask=okh[:, None] & (p[None, :] < P), other=0.0)
    m = tl.full((BH,), -1.0e30, tl.float32)
    z = tl.zeros((BH,), tl.float32)
    acc = tl.zeros((BH, BR), tl.float32)
    for n0 in range(lo, hi, BN):
        n = n0 + tl.arange(0, BN)
        row = KV + (base + n[:, None]) * skv
        kn = tl.load(row + r[None, :], mask=(n[:, None] < hi) & (r[None, :] < R), other=0.0)
        kp = tl.load(row + R + p[None, :], mask=(n[:, None] < hi) & (p[None, :] < P), other=0.0)
        s = (tl.dot(qn, tl.trans(kn)) + tl.dot(qp, tl.trans(kp))) * scale
        s = tl.where(n[None, :] < hi, s, -1.0e30)
        new = tl.maximum(m, tl.max(s, 1))
        e = tl.where(n[None, :] < hi, tl.exp(s - new[:, None]), 0.0)
        fix = tl.exp(m - new)
        z = z * fix + tl.sum(e, 1)
        acc = acc * fix[:, None] + tl.dot(e.to(kn.dtype), kn)
        m = new
    at = (b * heads + h) * splits + split
    tl.store(Lse + at, tl.where(z > 0, m + tl.log(z), -1.0e30), mask=okh)
    safe = tl.where(z > 0, z, 1.0)
    tl.store(Mid + at[:, None] * R + r[None, :], acc / safe[:, None], mask=okh[:, None] & (r[None, :] < R))


@triton.jit
def mla_stage2(Mid, Lse, Out, R, SPLITS: tl.constexpr, BR: tl.constexpr):
    bh = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, BR)
    top = -1.0e30
    for s in range(SPLITS):
        top = tl.maximum(top, tl.load(Lse + bh * SPLITS + s))
    acc = tl.zeros((BR,), tl.float32)
    norm = 0.0
    for s in range(SPLITS):
        w = tl.exp(tl.load(Lse + bh * SPLITS + s) - top)
        acc += w * tl.load(Mid + (bh * SPLITS + s) * R + r, mask=r < R, other=0.0)
        norm += w
    tl.store(Out + bh * R + r, (acc / norm).to(Out.dtype.element_ty), mask=r < R)


def begins(lengths):
    """Where each sequence's rows start in the packed cache."""
    return [0, *itertools.accumulate(lengths)][:-1]


def splits_for(batch, heads, longest, block_h, target=264):
    programs = batch * math.ceil(heads / block_h)
    wanted = max(1, min(32, target // max(programs, 1), math.ceil(longest / 256)))
    return 1 << (wanted.bit_length() - 1)


class Model(nn.Module):
    def __init__(self, nhead, kv_lora_rank, qk_rope_head_dim):
        super().__init__()
        self.nhead, self.rank, self.rope = nhead, kv_lora_rank, qk_rope_head_dim
        self.scale = (kv_lora_rank + qk_rope_head_dim) ** -0.5

    def forward(self, q, kv_cache, seq_lens):
        batch = q.shape[0]
        out = q.new_empty(batch, self.nhead, self.rank)
        if batch == 0:
            return out
        q = q if q.stride(-1) == 1 else q.contiguous()
        rows = kv_cache.squeeze(1)
        rows = rows if rows.stride(-1) == 1 else rows.contiguous()
        lengths = seq_lens.tolist()
        assert sum(lengths) <= rows.shape[0]
        begin = torch.tensor(begins(lengths), dtype=torch.int64, device=q.device)
        block_h = 16
        splits = splits_for(batch, self.nhead, max(lengths), block_h)
        options = dict(dtype=torch.float32, device=q.device)
        mid = torch.empty((batch, self.nhead, splits, self.rank), **options)
        lse = torch.empty((batch, self.nhead, splits), **options)
        block_r = max(16, triton.next_power_of_2(self.rank))
        block_p = max(16, triton.next_power_of_2(self.rope))
        mla_stage1[(batch, triton.cdiv(self.nhead, block_h), splits)](
            q, rows, seq_lens, begin, mid, lse, self.scale, self.nhead,
            q.stride(0), q.stride(1), rows.stride(0), self.rank, self.rope, splits,
            BH=block_h, BN=32, BR=block_r, BP=block_p, num_warps=8, num_stages=1,
        )
        mla_stage2[(batch * self.nhead,)](mid, lse, out, self.rank, SPLITS=splits, BR=block_r)
        return out
