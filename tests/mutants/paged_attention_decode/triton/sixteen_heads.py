"""gate: shapes
One tile of sixteen query heads to a key head: others are not computed.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _decode(
    out,
    query,
    k_cache,
    v_cache,
    tables,
    lens,
    kv_heads,
    group,
    D,
    block_size,
    scale,
    q_seq,
    q_head,
    k_block,
    k_head,
    k_piece,
    k_row,
    v_block,
    v_head,
    v_column,
    table_stride,
    PIECE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) % kv_heads
    member = tl.program_id(1) // kv_heads * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    here = (member[:, None] < group) & (d[None, :] < D)
    q_at = seq * q_seq + ((head * group + member) * q_head)[:, None] + d[None, :]
    x = tl.load(query + q_at, here, other=0.0)
    keys = tl.load(lens + seq)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in tl.range(0, keys, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        used = key < keys
        block = tl.load(tables + seq * table_stride + key // block_size, used, other=0).to(tl.int64)
        row = key % block_size
        k_at = (block * k_block + head * k_head + row * k_row)[None, :]
        k_at += (d // PIECE * k_piece + d % PIECE)[:, None]
        v_at = (block * v_block + head * v_head + row)[:, None] + (d * v_column)[None, :]
        y = tl.load(k_cache + k_at, used[None, :] & (d[:, None] < D), other=0.0)
        z = tl.load(v_cache + v_at, used[:, None] & (d[None, :] < D), other=0.0)
        logits = tl.where(used[None, :], tl.dot(x, y) * scale, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, axis=1))
        # A row whose logits are all -inf so far has no maximum to subtract.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(logits - base[:, None])
        decay = tl.exp2(peak - base)
        total = total * decay + tl.sum(p, axis=1)
        result = tl.dot(p.to(z.dtype), z, result * decay[:, None])
        peak = higher
    result = tl.where(keys > 0, result / total[:, None], 0.0)
    heads = kv_heads * group
    at = seq * heads * D + ((head * group + member) * D)[:, None] + d[None, :]
    tl.store(out + at, result.to(x.dtype), here)


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Model(nn.Module):
    def forward(
        self,
        query: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        block_tables: torch.Tensor,
        seq_lens: torch.Tensor,
    ) -> torch.Tensor:
        query, k_cache, v_cache, tables, lens = (
            _with_rows(t) for t in (query, k_cache, v_cache, block_tables, seq_lens)
        )
        (S, heads, D), (kv_heads, _, block_size, piece) = query.shape, k_cache.shape[1:]
        out = torch.empty((S, heads, D), dtype=query.dtype, device=query.device)
        if S > 0:
            group = heads // kv_heads
            block_m = 16
            block_d = max(16, triton.next_power_of_2(D))
            grid = (S, kv_heads)
            strides = *query.stride()[:2], *k_cache.stride()[:4], *v_cache.stride()[:3], tables.stride(0)
            extents = (kv_heads, group, D, block_size, D**-0.5 * 1.4426950408889634)  # exp2 instead of exp
            sizes = {"PIECE": piece, "BLOCK_M": block_m, "BLOCK_N": 64, "BLOCK_D": block_d}
            _decode[grid](
                out,
                query,
                k_cache,
                v_cache,
                tables,
                lens,
                *extents,
                *strides,
                **sizes,
                num_warps=4,
                num_stages=2,
            )
        return out
