"""---
title: Softmax and top-k routing with whole rows of logits in registers
technique: [register-tiling, fusion, selection-by-repeated-maximum]
dsl: triton
architecture: [sm_90]
operator: moe_topk_gating_softmax
symptoms: [launch-bound, unfused-elementwise, cross-warp-barrier]
preconditions: "fp32 logits [T, E], E at most 4096; any row stride and alignment"
tunables:
  rows: [1, 2, 4, 8, 16, 32]
  num_warps: [1, 2, 4, 8]
  normalise: [last, first]
source: own work
licence: Apache-2.0
---
Rows are short (128 or 256 experts), so softmax and selection happen in registers: logits are read once, and
only `top_k` weights and ids are written. The largest score is taken `top_k` times, and struck out each time.

A program owns `rows` rows. Reductions stay inside a warp, without barriers, while each warp has rows of its
own: more `rows` than `num_warps`. Few tokens want one row a program. `rows` is cut down where a lane would
hold more than 64 logits. With groups of experts a program owns one row, laid out as groups x members, and
strikes out the groups that are not kept first.

Selection needs only the order, so the division by the sum may come after it, for `top_k` scores a row
(`normalise` "last"), or before, for all ("first"), which keeps the quotient out of the chain of maxima. Both
divide the same numbers with correct rounding. Of equal scores the lower expert is taken.

The compiler is told nothing about the alignment of the logits, from which it would pick lanes, and so the
order of the sum: results are the same for every layout.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"rows": 4, "num_warps": 4, "normalise": "last"}),
]
# atrex: end

MAX_ELEMENTS_PER_LANE = 64
"""Of one tile: more would leave the registers."""


@triton.jit
def _quotient(scores, total):
    return tl.div_rn(scores, tl.broadcast_to(total[:, None], scores.shape))


@triton.jit
def _top(scores, inside, lanes, total, K, K_BLOCK: tl.constexpr, FIRST: tl.constexpr):
    """The K largest of each row of scores in order, over `total`, and their lanes."""
    places = tl.arange(0, K_BLOCK)[None, :]
    weights = tl.zeros([scores.shape[0], K_BLOCK], tl.float32)
    ids = tl.zeros([scores.shape[0], K_BLOCK], tl.int32)
    if FIRST:
        scores = _quotient(scores, total)
    scores = tl.where(inside, scores, -1.0)  # below every score
    for place in range(K):
        best, at = tl.max(scores, axis=1, return_indices=True)
        weights = tl.where(places == place, best[:, None], weights)
        ids = tl.where(places == place, at[:, None], ids)
        scores = tl.where(lanes == at[:, None], -1.0, scores)
    if not FIRST:
        weights = _quotient(weights, total)
    return weights, ids


@triton.jit(do_not_specialize=["logits", "stride"])
def _route(weights_out, ids_out, logits, T, E, stride, K, ROWS: tl.constexpr, BLOCK: tl.constexpr,
           K_BLOCK: tl.constexpr, FIRST: tl.constexpr):  # fmt: skip
    """ROWS rows of E logits."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    lanes = tl.arange(0, BLOCK)[None, :]
    inside = (row < T) & (lanes < E)
    logit = tl.load(logits + row * stride + lanes, inside, other=-float("inf"))
    largest = tl.max(tl.where(row < T, logit, 0.0), axis=1)
    powers = tl.exp(logit - largest[:, None])
    total = tl.sum(powers, axis=1)
    total = tl.where(total == 0, 1.0, total)  # rows beyond the last
    weights, ids = _top(powers, inside, lanes, total, K, K_BLOCK, FIRST)
    places = tl.arange(0, K_BLOCK)[None, :]
    real = (row < T) & (places < K)
    tl.store(weights_out + row * K + places, weights, real)
    tl.store(ids_out + row * K + places, ids, real)


@triton.jit(do_not_specialize=["logits", "stride"])
def _route_groups(weights_out, ids_out, logits, stride, groups, size, kept, K, GROUPS: tl.constexpr,
                  SIZE: tl.constexpr, K_BLOCK: tl.constexpr, FIRST: tl.constexpr):  # fmt: skip
    """One row of groups * size logits, of which the `kept` groups with the largest score may be chosen."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    lane = tl.arange(0, SIZE)[None, :]
    inside = (group < groups)[:, None] & (lane < size)
    expert = group[:, None] * size + lane
    logit = tl.load(logits + row * stride + expert, inside, other=-float("inf"))
    maxima = tl.max(logit, axis=1)
    powers = tl.exp(logit - tl.max(maxima, axis=0))
    total = tl.sum(tl.sum(powers, axis=1), axis=0)
    order = tl.where(group < groups, tl.max(powers, axis=1), -1.0)
    chosen = group < 0
    for _ in range(kept):
        _, at = tl.max(order, axis=0, return_indices=True)
        chosen = chosen | (group == at)
        order = tl.where(group == at, -1.0, order)
    scores = tl.reshape(powers, [1, GROUPS * SIZE])
    open_to = tl.reshape((chosen[:, None] & inside).to(tl.int32), [1, GROUPS * SIZE]) != 0
    flat = tl.arange(0, GROUPS * SIZE)[None, :]
    weights, at = _top(scores, open_to, flat, total + tl.zeros([1], tl.float32), K, K_BLOCK, FIRST)
    places = tl.arange(0, K_BLOCK)[None, :]
    tl.store(weights_out + row * K + places, weights, places < K)
    tl.store(ids_out + row * K + places, at // SIZE * size + at % SIZE, places < K)


class Model(nn.Module):
    """The top_k of each row's softmax, descending and not renormalised, and their experts."""

    def __init__(self, top_k: int, num_expert_groups: int = 0, topk_group: int = 0) -> None:
        super().__init__()
        self.top_k = top_k
        self.groups = num_expert_groups
        self.kept = topk_group

    def forward(self, gating_output: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = gating_output if gating_output.stride(-1) == 1 else gating_output.contiguous()
        (T, E), k = logits.shape, self.top_k
        weights = torch.empty((T, k), dtype=torch.float32, device=logits.device)
        ids = torch.empty((T, k), dtype=torch.int32, device=logits.device)
        if T == 0:
            return {"topk_weights": weights, "topk_ids": ids}
        config = _config(token_count=T, num_experts=E, top_k=k)
        warps, first = int(config["num_warps"]), config["normalise"] == "first"
        k_block = triton.next_power_of_2(k)
        if self.groups > 1:
            size = E // self.groups
            blocks = triton.next_power_of_2(self.groups), triton.next_power_of_2(size), k_block
            numbers = logits.stride(0), self.groups, size, self.kept, k
            warps = min(32, max(warps, blocks[0] * blocks[1] // (32 * MAX_ELEMENTS_PER_LANE)))
            _route_groups[(T,)](weights, ids, logits, *numbers, *blocks, first, num_warps=warps)
        else:
            block = triton.next_power_of_2(E)
            warps = max(warps, block // (32 * MAX_ELEMENTS_PER_LANE))
            rows = min(int(config["rows"]), MAX_ELEMENTS_PER_LANE * 32 * warps // block)
            numbers = T, E, logits.stride(0), k, rows, block, k_block, first
            _route[(triton.cdiv(T, rows),)](weights, ids, logits, *numbers, num_warps=warps)
        return {"topk_weights": weights, "topk_ids": ids}


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
