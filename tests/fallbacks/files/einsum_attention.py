import torch
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        starts = cu_seqlens_q.tolist()
        for a, b in zip(starts, starts[1:]):
            qs, ks, vs = (t[a:b].float() for t in (q, k, v))
            logits = torch.einsum("qhd,khd->hqk", qs, ks) * q.shape[-1] ** -0.5
            out[a:b] = torch.einsum("hqk,khd->qhd", logits.softmax(-1), vs)
        return out
