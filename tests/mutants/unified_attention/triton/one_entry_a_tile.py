"""gate: shapes
Reads one entry of the table for a tile of keys where blocks are longer than tiles, which need not begin
with them.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _attend(
    out,
    q,
    k_cache,
    v_cache,
    starts,
    keys_used,
    table,
    num_seqs,
    group,
    D,
    block_size,
    scale,
    out_token,
    out_head,
    q_token,
    q_head,
    k_block,
    k_row,
    k_head,
    v_block,
    v_row,
    v_head,
    table_stride,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # Sequence s has its tiles from starts[s] * group // BLOCK_M + s on, which leaves room for all of them.
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        first = (tl.load(starts + middle).to(tl.int64) * group // BLOCK_M + middle).to(tl.int32)
        low = tl.where(first <= tile, middle, low)
        high = tl.where(first <= tile, high, middle)
    begin = tl.load(starts + low).to(tl.int64)
    queries = (tl.load(starts + low + 1) - begin).to(tl.int32)
    local = tile - (begin * group // BLOCK_M + low).to(tl.int32)
    if local * BLOCK_M >= queries * group:
        return
    keys = tl.load(keys_used + low)
    pair = local * BLOCK_M + tl.arange(0, BLOCK_M)
    query, member = pair // group, pair % group
    inside = pair < queries * group
    d = tl.arange(0, BLOCK_D)
    token = begin + query
    q_head_index = head * group + member
    rows = q + (token * q_token + q_head_index * q_head)[:, None] + d[None, :]
    x = tl.load(rows, inside[:, None] & (d[None, :] < D), other=0.0)
    last = keys - queries + query  # the last key that a query sees
    end = tl.minimum(keys, keys - queries + (local * BLOCK_M + BLOCK_M - 1) // group + 1)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in tl.range(0, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        used = key < end
        block = tl.load(table + tl.cast(low, tl.int64) * table_stride + key // block_size, used, other=0).to(
            tl.int64
        )
        row = (key % block_size).to(tl.int64)
        if block_size >= BLOCK_N:  # a tile lies in one block
            block = tl.load(table + tl.cast(low, tl.int64) * table_stride + start // block_size).to(tl.int64)
            block = block + tl.zeros([BLOCK_N], tl.int64)
            row = (start % block_size + tl.arange(0, BLOCK_N)).to(tl.int64)
        held = used[:, None] & (d[None, :] < D)
        k_at = (block * k_block + row * k_row + head * k_head)[:, None] + d[None, :]
        v_at = (block * v_block + row * v_row + head * v_head)[:, None] + d[None, :]
        k = tl.load(k_cache + k_at, held, other=0.0)
        v = tl.load(v_cache + v_at, held, other=0.0)
        logits = tl.dot(x, tl.trans(k)) * scale
        logits = tl.where(used[None, :] & (key[None, :] <= last[:, None]), logits, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, axis=1))
        # A row whose logits are all -inf so far has no maximum to subtract.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(logits - base[:, None])
        decay = tl.exp2(peak - base)
        total = total * decay + tl.sum(p, axis=1)
        result = tl.dot(p.to(v.dtype), v, result * decay[:, None])
        peak = higher
    result = result / total[:, None]
    at = (token * out_token + q_head_index * out_head)[:, None] + d[None, :]
    tl.store(out + at, result.to(tl.bfloat16), inside[:, None] & (d[None, :] < D))


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Model(nn.Module):
    def forward(
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        seqused_k: torch.Tensor,
        block_table: torch.Tensor,
    ) -> torch.Tensor:
        q, k_cache, v_cache, starts, used, table = (
            _with_rows(t) for t in (q, k_cache, v_cache, cu_seqlens_q, seqused_k, block_table)
        )
        (T, heads, D), (block_size, kv_heads), num_seqs = q.shape, k_cache.shape[1:3], used.shape[0]
        out = torch.empty((T, heads, D), dtype=q.dtype, device=q.device)
        if T > 0:
            group = heads // kv_heads
            block_m = 16 if num_seqs == T else 128
            block_d = max(16, triton.next_power_of_2(D))
            grid = (T * group // block_m + num_seqs, kv_heads)
            sizes = {"BLOCK_M": block_m, "BLOCK_N": 128 if block_d <= 128 else 64, "BLOCK_D": block_d}
            _attend[grid](
                out,
                q,
                k_cache,
                v_cache,
                starts,
                used,
                table,
                num_seqs,
                group,
                D,
                block_size,
                D**-0.5 * 1.4426950408889634,  # exp2 instead of exp
                *out.stride()[:2],
                *q.stride()[:2],
                *k_cache.stride()[:3],
                *v_cache.stride()[:3],
                table.stride(0),
                **sizes,
                num_warps=8 if block_m == 128 else 4,
                num_stages=2,
            )
        return out
