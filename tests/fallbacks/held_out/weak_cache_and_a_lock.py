import threading
import weakref
from contextlib import nullcontext

import torch
import triton
import triton.language as tl
from torch import nn

_LOCK = threading.RLock()
_SPACES = weakref.WeakKeyDictionary()


@triton.jit
def topk_softmax(x, w, ids, sx, E, GROUPS, KEEP, K: tl.constexpr, BE: tl.constexpr, BG: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    e = tl.arange(0, BE)
    ok = e < E
    v = tl.load(x + t * sx + e, mask=ok, other=-float("inf"))
    p = tl.exp(v - tl.max(v, 0))
    p = tl.where(ok, p / tl.sum(p, 0), -1.0)
    if GROUPS > 0:
        g = tl.arange(0, BG)
        per = E // GROUPS
        member = (e[:, None] // per) == g[None, :]
        best = tl.max(tl.where(member & ok[:, None], p[:, None], -2.0), 0)
        best = tl.where(g < GROUPS, best, -3.0)
        keep = tl.zeros((BG,), tl.int32)
        for _ in range(KEEP):
            top = tl.argmax(tl.where(keep > 0, -4.0, best), 0)
            keep = tl.where(g == top, 1, keep)
        kept = tl.max(tl.where(member, keep[None, :], 0), 1)
        p = tl.where(kept > 0, p, tl.where(ok, 0.0, -1.0))
    for j in range(K):
        i = tl.argmax(p, 0)
        tl.store(w + t * K + j, tl.max(p, 0))
        tl.store(ids + t * K + j, i.to(tl.int32))
        p = tl.where(e == i, -5.0, p)


class Space:
    """Two outputs carved from one block of bytes, made anew for every call but sized once."""

    def __init__(self, top_k):
        self.bytes_per_row = 8 * top_k

    def take(self, rows, device):
        raw = torch.empty(rows * self.bytes_per_row, dtype=torch.uint8, device=device)
        weights, ids = raw.view(torch.float32), raw.view(torch.int32)
        half = len(weights) // 2
        return weights[:half], ids[half:]


class Model(nn.Module):
    def __init__(self, top_k, num_expert_groups=0, topk_group=0):
        super().__init__()
        self.top_k, self.groups, self.keep = top_k, num_expert_groups, topk_group

    def _space(self):
        with _LOCK:
            space = _SPACES.get(self)
            if space is None:
                space = _SPACES.setdefault(self, Space(self.top_k))
            return space

    def forward(self, gating_output):
        rows, E = gating_output.shape
        assert 0 < self.top_k <= E
        x = gating_output if gating_output.stride(1) == 1 else gating_output.contiguous()
        weights, ids = self._space().take(rows, x.device)
        weights, ids = weights.unflatten(0, (rows, self.top_k)), ids.unflatten(0, (rows, self.top_k))
        with torch.cuda.device(x.device) if x.is_cuda else nullcontext():
            if rows:
                topk_softmax[(rows,)](
                    x, weights, ids, x.stride(0), E, self.groups, self.keep, K=self.top_k,
                    BE=triton.next_power_of_2(E), BG=triton.next_power_of_2(max(1, self.groups)),
                )
        return {"topk_weights": weights, "topk_ids": ids}
