import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _scores(scores, logits, E, stride, groups, kept, SIZE, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    z = tl.load(logits + row * stride + e, e < E, other=-float("inf"))
    p = tl.exp(z - tl.max(z, 0))
    p = p / tl.sum(p, 0)
    group = e // SIZE
    if groups > 1:
        left = tl.where(e < E, p, -1.0)
        chosen = e < 0
        for _ in range(kept):
            _, at = tl.max(left, 0, return_indices=True)
            best = at // SIZE
            chosen = chosen | (group == best)
            left = tl.where(group == best, -1.0, left)
        p = tl.where(chosen, p, 0.0)
    tl.store(scores + row * E + e, p, e < E)


@triton.jit
def _select(weights, ids, scores, E, K, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BLOCK)
    p = tl.load(scores + row * E + e, e < E, other=-1.0)
    for k in range(K):
        best, at = tl.max(p, 0, return_indices=True)
        tl.store(weights + row * K + k, best)
        tl.store(ids + row * K + k, at.to(tl.int32))
        p = tl.where(e == at, -1.0, p)


class Model(nn.Module):
    def __init__(self, top_k: int, num_expert_groups: int = 0, topk_group: int = 0):
        super().__init__()
        self.top_k, self.groups, self.kept = top_k, num_expert_groups, topk_group

    def forward(self, gating_output):
        logits = gating_output if gating_output.stride(1) == 1 else gating_output.contiguous()
        T, E = logits.shape
        like = {"device": logits.device}
        scores = torch.empty((T, E), dtype=torch.float32, **like)
        weights = torch.empty((T, self.top_k), dtype=torch.float32, **like)
        ids = torch.empty((T, self.top_k), dtype=torch.int32, **like)
        if T:
            block = triton.next_power_of_2(E)
            size = E // max(1, self.groups)
            _scores[(T,)](scores, logits, E, logits.stride(0), self.groups, self.kept, size, BLOCK=block)
            _select[(T,)](weights, ids, scores, E, self.top_k, BLOCK=block)
        return {"topk_weights": weights, "topk_ids": ids}
