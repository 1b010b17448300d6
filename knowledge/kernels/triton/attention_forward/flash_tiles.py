"""---
title: Flash attention over packed sequences, without a mask
technique: [online-softmax, tensor-cores, tiling, software-pipelining]
dsl: triton
architecture: [sm_90]
operator: attention_forward
symptoms: [compute-bound, low-tensor-core-use, few-programs, materialised-logits]
preconditions: "bf16 q, k, v [T, heads, D], D <= 256, int32 prefix sums of lengths; any row stride"
tunables:
  block_m: [16, 32, 64, 128]
  block_n: [16, 32, 64, 128]
  num_warps: [4, 8]
  num_stages: [1, 2, 3]
source: own work
licence: Apache-2.0
---
A program holds `block_m` queries of one sequence and head, and goes over that sequence's keys `block_n` at a
time, with a running maximum and sum of each row (online softmax): logits never leave the registers.

Programs are numbered without knowing the lengths on the host: sequence s has its tiles from place start(s)
// block_m + s on, which leaves room for all, and a program finds its sequence by bisection. A program in the
room that is left returns at once.

Larger `block_m` reads keys and values less often and leaves fewer programs; `block_n` and `num_stages` trade
shared memory and registers for loads in flight. Where tiles would not fit, `num_stages` is lowered or
`num_warps` raised. D is padded to a power of two, which wastes work at 72 and 80, but is known when the
kernel is compiled, so that the mask at 72 leaves whole vectors to load. Logits, sums and the result are
fp32; only the probabilities are rounded to bf16, relative to their row's maximum, since tensor cores take
both operands narrow.

A dispatch rule's `longest` is compared with the mean length, rounded up (or with D, if that is larger): the
longest sequence is known on the device only, and asking for it would stall the stream. With one sequence, or
sequences of one length, it is the same.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"block_m": 128, "block_n": 64, "num_warps": 8, "num_stages": 2}),
]
# atrex: end

SHARED_BYTES = 200 * 1024
"""Of shared memory that the tiles may take; an H200's program has 227 KiB, and the compiler needs some."""
FLOATS_PER_LANE = 192
"""Of logits and result: a lane has 255 registers."""
LOG2_E = 1.4426950408889634


@triton.jit
def _attend(out, q, k, v, q_starts, k_starts, num_seqs, scale, out_token, out_head, q_token, q_head,
            k_token, k_head, v_token, v_head, UNIT: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr,
            BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr):  # fmt: skip
    """BLOCK_M queries of one sequence and head; strides in units of UNIT elements, log2 e in `scale`."""
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
    x = tl.load(q + ((token * q_token + head * q_head) * UNIT)[:, None] + d[None, :], here, other=0.0)
    k_begin = tl.load(k_starts + low).to(tl.int64)
    keys = (tl.load(k_starts + low + 1) - k_begin).to(tl.int32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in tl.range(0, keys, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        held = (key[:, None] < keys) & (d[None, :] < D)
        row = k_begin + key
        y = tl.load(k + ((row * k_token + head * k_head) * UNIT)[:, None] + d[None, :], held, other=0.0)
        z = tl.load(v + ((row * v_token + head * v_head) * UNIT)[:, None] + d[None, :], held, other=0.0)
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
    at = ((token * out_token + head * out_head) * UNIT)[:, None] + d[None, :]
    tl.store(out + at, result.to(tl.bfloat16), here)


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Model(nn.Module):
    """out = softmax(q k^T / sqrt(D)) v within each packed sequence."""

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
        if T == 0:
            return out
        longest = max(D, triton.cdiv(T, num_seqs))
        config = _config(
            token_count=T,
            num_heads=heads,
            head_dim=D,
            num_seqs=num_seqs,
            boundaries=num_seqs + 1,
            longest=longest,
        )
        block_m, block_n = int(config["block_m"]), int(config["block_n"])
        block_d = max(16, triton.next_power_of_2(D))
        warps = 8 if block_m * (block_n + block_d) > FLOATS_PER_LANE * 32 * 4 else 4
        fitting = (SHARED_BYTES - 2 * block_m * block_d) // (4 * block_n * block_d)
        strides = [stride for tensor in (out, q, k, v) for stride in tensor.stride()[:2]]
        # Told as a factor, since a head of 72 is no multiple of the 16 that the compiler looks for itself.
        unit = 8 if all(stride % 8 == 0 for stride in strides) else 1
        _attend[(T // block_m + num_seqs, heads)](
            *(out, q, k, v, q_starts, k_starts, num_seqs, D**-0.5 * LOG2_E),
            *(stride // unit for stride in strides),
            *(unit, D, block_m, block_n, block_d),
            num_warps=max(warps, int(config["num_warps"])),
            num_stages=max(1, min(int(config["num_stages"]), fitting)),
        )
        return out


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
