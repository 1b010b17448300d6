import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def kth_largest(x, kth, n, k, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lo = -2147483648
    hi = 2147483647
    for _ in range(33):
        mid = (lo >> 1) + (hi >> 1) + (lo & hi & 1)
        above = 0
        for c0 in range(0, n, BLOCK):
            c = c0 + tl.arange(0, BLOCK)
            bits = tl.load(x + row * n + c, mask=c < n, other=0.0).to(tl.int32, bitcast=True)
            key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
            above += tl.sum(((key > mid) & (c < n)).to(tl.int32), 0)
        if above >= k:
            lo = mid + 1
        else:
            hi = mid
    tl.store(kth + row, lo)


class Model(nn.Module):
    def __init__(self, top_k: int = 50):
        super().__init__()
        self.top_k = top_k

    def forward(self, logits):
        rows, n = logits.shape
        logits = logits.contiguous()
        keys = torch.empty((rows, 1), dtype=torch.int32, device=logits.device)
        if rows:
            kth_largest[(rows,)](logits, keys, n, min(self.top_k, n), BLOCK=2048)
        nothing = logits.new_full((), float("-inf"))
        bits = logits.view(torch.int32)
        sortable = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        return torch.where(sortable >= keys, logits, nothing)
