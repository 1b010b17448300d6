"""gate: sensitivity
With groups, exp is taken of the logits themselves: far from zero it overflows or vanishes.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _top(scores, lanes, total, K, K_BLOCK: tl.constexpr):
    """The K largest of each row of [ROWS, BLOCK] scores in order, over `total`, and their lanes."""
    places = tl.arange(0, K_BLOCK)[None, :]
    weights = tl.zeros([scores.shape[0], K_BLOCK], tl.float32)
    ids = tl.zeros([scores.shape[0], K_BLOCK], tl.int32)
    for place in range(K):
        best, at = tl.max(scores, axis=1, return_indices=True)
        weights = tl.where(places == place, best[:, None], weights)
        ids = tl.where(places == place, at[:, None], ids)
        scores = tl.where(lanes == at[:, None], -1.0, scores)  # below every score; so is padding
    return tl.div_rn(weights, tl.broadcast_to(total[:, None], weights.shape)), ids


@triton.jit
def _route(
    weights_out,
    ids_out,
    logits,
    T,
    E,
    stride,
    K,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    K_BLOCK: tl.constexpr,
):
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    lanes = tl.arange(0, BLOCK)[None, :]
    inside = (row < T) & (lanes < E)
    logit = tl.load(logits + row * stride + lanes, inside, other=-float("inf"))
    largest = tl.max(tl.where(row < T, logit, 0.0), axis=1)
    powers = tl.exp(logit - largest[:, None])
    total = tl.sum(powers, axis=1)
    total = tl.where(total == 0, 1.0, total)  # rows beyond the last
    weights, ids = _top(tl.where(inside, powers, -1.0), lanes, total, K, K_BLOCK)
    places = tl.arange(0, K_BLOCK)[None, :]
    real = (row < T) & (places < K)
    tl.store(weights_out + row * K + places, weights, real)
    tl.store(ids_out + row * K + places, ids, real)


@triton.jit
def _route_groups(
    weights_out,
    ids_out,
    logits,
    stride,
    groups,
    size,
    kept,
    K,
    GROUPS: tl.constexpr,
    SIZE: tl.constexpr,
    K_BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    lane = tl.arange(0, SIZE)[None, :]
    inside = (group < groups)[:, None] & (lane < size)
    expert = group[:, None] * size + lane
    logit = tl.load(logits + row * stride + expert, inside, other=-float("inf"))
    maxima = tl.max(logit, axis=1)
    powers = tl.exp(logit)
    total = tl.sum(tl.sum(powers, axis=1), axis=0)
    order = tl.where(group < groups, tl.max(powers, axis=1), -1.0)
    chosen = group < 0
    for _ in range(kept):
        _, at = tl.max(order, axis=0, return_indices=True)
        chosen = chosen | (group == at)
        order = tl.where(group == at, -1.0, order)
    scores = tl.where(chosen[:, None] & inside, powers, -1.0)
    scores = tl.reshape(scores, [1, GROUPS * SIZE])
    flat = tl.arange(0, GROUPS * SIZE)[None, :]
    weights, at = _top(scores, flat, total + tl.zeros([1], tl.float32), K, K_BLOCK)
    places = tl.arange(0, K_BLOCK)[None, :]
    tl.store(weights_out + row * K + places, weights, places < K)
    tl.store(ids_out + row * K + places, at // SIZE * size + at % SIZE, places < K)


class Model(nn.Module):
    def __init__(self, top_k: int, num_expert_groups: int = 0, topk_group: int = 0) -> None:
        super().__init__()
        self.top_k = top_k
        self.groups = num_expert_groups
        self.kept = topk_group

    def forward(self, gating_output: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = gating_output if gating_output.stride(-1) == 1 else gating_output.contiguous()
        T, E = logits.shape
        k, device = self.top_k, logits.device
        weights = torch.empty((T, k), dtype=torch.float32, device=device)
        ids = torch.empty((T, k), dtype=torch.int32, device=device)
        k_block = triton.next_power_of_2(k)
        if T > 0 and self.groups > 1:
            size = E // self.groups
            blocks = triton.next_power_of_2(self.groups), triton.next_power_of_2(size), k_block
            numbers = logits.stride(0), self.groups, size, self.kept, k
            _route_groups[(T,)](weights, ids, logits, *numbers, *blocks, num_warps=1 if E <= 1024 else 4)
        elif T > 0:
            block = triton.next_power_of_2(E)
            rows = min(triton.next_power_of_2(T), max(1, 512 // block))
            numbers = T, E, logits.stride(0), k, rows, block, k_block
            warps = min(8, max(1, rows * block // 256))
            _route[(triton.cdiv(T, rows),)](weights, ids, logits, *numbers, num_warps=warps)
        return {"topk_weights": weights, "topk_ids": ids}
