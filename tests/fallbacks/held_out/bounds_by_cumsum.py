import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def count(ids, bins, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(bins + tl.load(ids + i, mask=i < n, other=0), 1, mask=i < n)


@triton.jit
def place(ids, bounds, order, n, BLOCK: tl.constexpr):
    e = tl.program_id(0)
    cursor = tl.load(bounds + e)
    for i0 in range(0, n, BLOCK):
        i = i0 + tl.arange(0, BLOCK)
        hit = (tl.load(ids + i, mask=i < n, other=-1) == e).to(tl.int32)
        tl.store(order + cursor + tl.cumsum(hit, 0) - hit, i, mask=hit > 0)
        cursor += tl.sum(hit, 0)


class Model(nn.Module):
    def __init__(self, num_experts, block_size=128):
        super().__init__()
        self.num_experts = num_experts

    def forward(self, topk_ids):
        ids = topk_ids.contiguous().view(-1)
        n = ids.numel()
        counts = torch.zeros(self.num_experts, dtype=torch.int32, device=ids.device)
        bounds = torch.zeros(self.num_experts + 1, dtype=torch.int32, device=ids.device)
        order = torch.empty_like(ids)
        if n:
            count[(triton.cdiv(n, 1024),)](ids, counts, n, BLOCK=1024)
            bounds[1:] = torch.cumsum(counts, dim=0, dtype=torch.int32)
            place[(self.num_experts,)](ids, bounds, order, n, BLOCK=1024)
        return {"sorted_token_ids": order, "expert_token_counts": counts, "cumsum": bounds}
