import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _topk(w_out, id_out, logits, E, stride, K, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    z = tl.load(logits + row * stride + lane, lane < E, other=-float("inf"))
    p = tl.exp(z - tl.max(z, axis=0))
    total = tl.sum(p, axis=0)
    p = tl.where(lane < E, p, -1.0)
    for j in range(K):
        best, at = tl.max(p, axis=0, return_indices=True)
        tl.store(w_out + row * K + j, best / total)
        tl.store(id_out + row * K + j, at.to(tl.int32))
        p = tl.where(lane == at, -1.0, p)


def make_router(top_k):
    def route(logits):
        T, E = logits.shape
        weights = torch.empty((T, top_k), dtype=torch.float32, device=logits.device)
        ids = torch.empty((T, top_k), dtype=torch.int32, device=logits.device)

        def launch():
            _topk[(T,)](weights, ids, logits, E, logits.stride(0), top_k, BLOCK=triton.next_power_of_2(E))

        if T:
            launch()
        return {"topk_weights": weights, "topk_ids": ids}

    return route


class Model(nn.Module):
    def __init__(self, top_k, num_expert_groups=0, topk_group=0):
        super().__init__()
        if num_expert_groups > 1:
            raise NotImplementedError("groups of experts")
        self.route = make_router(top_k)

    def forward(self, gating_output):
        return self.route(gating_output.contiguous())
