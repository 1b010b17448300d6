"""---
title: Recurrent gated delta rule, a tile of the state in registers through all tokens
technique: [recurrence, register-tiling, fusion, in-place-update, loop-unrolling, prefetching]
dsl: triton
architecture: [sm_90]
operator: gated_delta_rule_update
symptoms: [latency-bound, memory-bound, few-programs, sequential-loop]
preconditions: "bf16 inputs, fp32 states [S, Hv, K, V], K, V <= 256; any stride between sequences and states"
tunables:
  block_v: [8, 16, 32, 64]
  prefetch: [0, 1]
  unroll: [1, 2]
  num_warps: [1, 2, 4, 8]
source: own work
licence: Apache-2.0
---
The columns of a state (its V axis) do not talk to each other: the update S += k (v - S^T k)^T beta needs
only sums over K. So a program takes one sequence, one v head and `block_v` columns through all tokens, with
its part of the state in registers: read once, written once, in place.

One token (decoding) is a matter of bandwidth: each program reads and writes its part of a state. Many tokens
are a matter of latency: token follows token, so each step's reductions over K should be short, which smaller
`block_v` and fewer warps help, at the price of normalising q and k once more in every program. A store may
overlap anything as far as the compiler knows, so a step's loads wait for the step in front: `prefetch` 1
reads each token while the one before it is worked on, and `unroll` leaves the scheduler longer stretches.

`block_v` is lowered where a lane would hold more than 32 elements of the state. Prefill of thousands of
tokens wants a chunked form, which this is not. The compiler is told nothing about the alignment of states, q
and k, from which it would pick lanes, and so the order of sums over K: results are the same for every
layout.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"block_v": 32, "prefetch": 0, "unroll": 1, "num_warps": 4}),
]
# atrex: end

MAX_ELEMENTS_PER_LANE = 32
"""Of the state: products with q and k of the same size need registers too."""


@triton.jit
def _token(a, b, q, k, v, in_k, in_v):
    """What one token brings, as it is stored."""
    query, key = tl.load(q, in_k, other=0.0), tl.load(k, in_k, other=0.0)
    return tl.load(a), tl.load(b), query, key, tl.load(v, in_v, other=0.0)


@triton.jit(do_not_specialize=["state", "q", "k", "state_stride", "q_stride", "k_stride"])
def _update(out, state, A_log, a, dt_bias, q, k, v, b, indices, T, G, H, K, V, a_stride, q_stride, k_stride,
            v_stride, b_stride, state_stride, A_log_stride, dt_bias_stride, index_stride, scale,
            softplus_beta, softplus_threshold, NORMALISE: tl.constexpr, BLOCK_K: tl.constexpr,
            BLOCK_V: tl.constexpr, PREFETCH: tl.constexpr, UNROLL: tl.constexpr):  # fmt: skip
    """All tokens of one sequence and v head, for BLOCK_V columns of the state."""
    sequence = (tl.program_id(0) // H).to(tl.int64)
    head = tl.program_id(0) % H
    group = head // (H // G)
    row = tl.arange(0, BLOCK_K)
    column = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k, in_v = row < K, column < V
    inside = in_k[:, None] & in_v[None, :]
    where = tl.load(indices + sequence * index_stride).to(tl.int64)
    place = state + where * state_stride + (head * K + row)[:, None] * V + column[None, :]
    S = tl.load(place, inside, other=0.0)
    rate = tl.exp(tl.load(A_log + head * A_log_stride))
    bias = tl.load(dt_bias + head * dt_bias_stride).to(tl.float32)
    a += sequence * a_stride + head
    b += sequence * b_stride + head
    q += sequence * q_stride + group * K + row
    k += sequence * k_stride + group * K + row
    v += sequence * v_stride + head * V + column
    out += sequence * T * H * V + head * V + column
    now_a, now_b, now_q, now_k, now_v = _token(a, b, q, k, v, in_k, in_v)
    for t in tl.range(0, T, loop_unroll_factor=UNROLL):
        more = (t + 1 < T).to(tl.int32)  # the last token reads itself once more, instead of what lies behind
        a += more * H
        b += more * H
        q += more * G * K
        k += more * G * K
        v += more * H * V
        if PREFETCH:
            next_a, next_b, next_q, next_k, next_v = _token(a, b, q, k, v, in_k, in_v)
        x = now_a.to(tl.float32) + bias
        curved = tl.log(1.0 + tl.exp(x * softplus_beta)) / softplus_beta
        decay = tl.exp(-rate * tl.where(x * softplus_beta > softplus_threshold, x, curved))
        beta = 1.0 / (1.0 + tl.exp(-now_b.to(tl.float32)))
        query, key, value = now_q.to(tl.float32), now_k.to(tl.float32), now_v.to(tl.float32)
        if NORMALISE:
            query *= tl.div_rn(1.0, tl.maximum(tl.sqrt_rn(tl.sum(query * query, axis=0)), 1e-6))
            key *= tl.div_rn(1.0, tl.maximum(tl.sqrt_rn(tl.sum(key * key, axis=0)), 1e-6))
        S *= decay
        update = (value - tl.sum(S * key[:, None], axis=0)) * beta
        S += key[:, None] * update[None, :]
        result = tl.sum(S * (query * scale)[:, None], axis=0)
        tl.store(out, result.to(tl.bfloat16), in_v)
        out += H * V
        if not PREFETCH:
            next_a, next_b, next_q, next_k, next_v = _token(a, b, q, k, v, in_k, in_v)
        now_a, now_b, now_q, now_k, now_v = next_a, next_b, next_q, next_k, next_v
    tl.store(place, S, inside)


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if all axes but the first are packed, else a copy."""
    return tensor if tensor[0].is_contiguous() else tensor.contiguous()


class Model(nn.Module):
    """out [B, T, Hv, V], and the pool of states with the indexed ones updated."""

    def __init__(
        self,
        softplus_beta: float = 1.0,
        softplus_threshold: float = 20.0,
        scale: float | None = None,
        use_qk_l2norm: bool = True,
    ) -> None:
        super().__init__()
        self.softplus = softplus_beta, softplus_threshold
        self.scale = scale
        self.normalise = use_qk_l2norm

    def forward(
        self,
        A_log: torch.Tensor,
        a: torch.Tensor,
        dt_bias: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        b: torch.Tensor,
        initial_state: torch.Tensor,
        initial_state_indices: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        a, q, k, v, b = (_packed(tensor) for tensor in (a, q, k, v, b))
        (B, T, H, V), (G, K) = v.shape, q.shape[2:]
        out = torch.empty((B, T, H, V), dtype=v.dtype, device=v.device)
        state = _packed(initial_state)  # updated in place unless its states are scattered or shared
        if state.stride(0) < H * K * V and state.shape[0] > 1:
            state = state.contiguous()
        if T == 0:
            return {"out": out, "final_state": state}
        dims = {"batch_size": B, "token_count": T, "num_q_heads": G, "num_v_heads": H}
        config = _config(**dims, key_dim=K, value_dim=V, state_count=state.shape[0])
        warps = int(config["num_warps"])
        block_k = triton.next_power_of_2(K)
        fitting = max(1, MAX_ELEMENTS_PER_LANE * 32 * warps // block_k)
        block_v = min(int(config["block_v"]), triton.next_power_of_2(V), fitting)
        scale = K**-0.5 if self.scale is None else self.scale
        strides = (tensor.stride(0) for tensor in (a, q, k, v, b, state, A_log, dt_bias))
        _update[(B * H, triton.cdiv(V, block_v))](
            *(out, state, A_log, a, dt_bias, q, k, v, b, initial_state_indices, T, G, H, K, V, *strides),
            *(initial_state_indices.stride(0), scale, *self.softplus, self.normalise, block_k, block_v),
            PREFETCH=config["prefetch"] == 1,
            UNROLL=int(config["unroll"]),
            num_warps=warps,
        )
        return {"out": out, "final_state": state}


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
