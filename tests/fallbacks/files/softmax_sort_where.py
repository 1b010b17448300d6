import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, top_k: int, num_expert_groups: int = 0, topk_group: int = 0):
        super().__init__()
        self.top_k, self.groups, self.kept = top_k, num_expert_groups, topk_group

    def forward(self, gating_output):
        scores = torch.softmax(gating_output, dim=-1, dtype=torch.float32)
        T, E = scores.shape
        if self.groups > 1:
            best = scores.view(T, self.groups, -1).amax(-1)
            order = torch.argsort(best, dim=-1, descending=True)[:, : self.kept]
            mask = torch.zeros_like(best, dtype=torch.bool).scatter_(1, order, True)
            mask = mask.repeat_interleave(E // self.groups, dim=1)
            scores = torch.where(mask, scores, 0.0)
        weights, ids = torch.sort(scores, dim=-1, descending=True)
        weights, ids = weights.narrow(1, 0, self.top_k), ids.narrow(1, 0, self.top_k)
        return {"topk_weights": weights.contiguous(), "topk_ids": ids.to(torch.int32)}
