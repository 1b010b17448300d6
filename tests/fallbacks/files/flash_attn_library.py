from flash_attn import flash_attn_varlen_func
from torch import nn


class Model(nn.Module):
    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        longest = int((cu_seqlens_q[1:] - cu_seqlens_q[:-1]).max()) if q.shape[0] else 0
        return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, longest, longest, causal=False)
