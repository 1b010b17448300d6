"""gate: layouts
Takes the heads of a token for packed.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _attend(
    out,
    q,
    k,
    v,
    q_starts,
    k_starts,
    num_seqs,
    D,
    scale,
    out_token,
    out_head,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # Sequence s has its tiles from place q_starts[s] // BLOCK_M + s on, which leaves room for all of them.
    tile, head = tl.program_id(0), tl.program_id(1).to(tl.int64)
    low, high = 0, num_seqs
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(q_starts + middle) // BLOCK_M + middle
        low = tl.where(first <= tile, middle, low)
        high = tl.where(first <= tile, high, middle)
    begin = tl.load(q_starts + low)
    queries = tl.load(q_starts + low + 1) - begin
    local = tile - (begin // BLOCK_M + low)
    if local * BLOCK_M >= queries:
        return
    query = local * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    here = (query[:, None] < queries) & (d[None, :] < D)
    token = begin.to(tl.int64) + query
    x = tl.load(q + (token * q_token + head * q_head)[:, None] + d[None, :], here, other=0.0)
    k_begin = tl.load(k_starts + low).to(tl.int64)
    keys = (tl.load(k_starts + low + 1) - k_begin).to(tl.int32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in tl.range(0, keys, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        held = (key[:, None] < keys) & (d[None, :] < D)
        row = k_begin + key
        y = tl.load(k + (row * k_token + head * k_head)[:, None] + d[None, :], held, other=0.0)
        z = tl.load(v + (row * v_token + head * v_head)[:, None] + d[None, :], held, other=0.0)
        logits = tl.dot(x, tl.trans(y)) * scale
        logits = tl.where(key[None, :] < keys, logits, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, axis=1))
        # A row whose logits are all -inf so far has no maximum to subtract.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(logits - base[:, None])
        decay = tl.exp2(peak - base)
        total = total * decay + tl.sum(p, axis=1)
        result = tl.dot(p.to(z.dtype), z, result * decay[:, None])
        peak = higher
    result = result / total[:, None]
    tl.store(out + (token * out_token + head * out_head)[:, None] + d[None, :], result.to(tl.bfloat16), here)


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Model(nn.Module):
    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
    ) -> torch.Tensor:
        q, k, v, q_starts, k_starts = (_with_rows(t) for t in (q, k, v, cu_seqlens_q, cu_seqlens_k))
        (T, heads, D), num_seqs = q.shape, q_starts.shape[0] - 1
        out = torch.empty((T, heads, D), dtype=q.dtype, device=q.device)
        if T > 0:
            block_d = max(16, triton.next_power_of_2(D))
            grid = (T // 128 + num_seqs, heads)
            sizes = {"BLOCK_M": 128, "BLOCK_N": 128 if block_d <= 128 else 64, "BLOCK_D": block_d}
            scale = D**-0.5 * 1.4426950408889634  # exp2 instead of exp
            strides = [stride for t in (out, q, k, v) for stride in (t.stride(0), D)]
            _attend[grid](
                out,
                q,
                k,
                v,
                q_starts,
                k_starts,
                num_seqs,
                D,
                scale,
                *strides,
                **sizes,
                num_warps=8,
                num_stages=2,
            )
        return out
