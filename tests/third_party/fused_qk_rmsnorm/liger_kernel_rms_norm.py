"""Casting mode "llama": each head's norm in fp32, rounded, then times the weight; a call for q, one for k."""

import torch
import triton  # noqa: F401
from liger_kernel.ops import rms_norm as package
from torch import Tensor, nn

KERNELS = (package._rms_norm_forward_kernel, package._block_rms_norm_forward_kernel)
DEFECTS = {"specials": "the weight is added to an offset of 0, and -0 + 0 is +0: a zero loses its sign"}


class Model(nn.Module):
    def __init__(self, head_num: int, kv_head_num: int, size_per_head: int, eps: float = 1e-6) -> None:
        super().__init__()
        heads = (head_num, kv_head_num, kv_head_num)
        self.widths, self.size, self.eps = [count * size_per_head for count in heads], size_per_head, eps

    def forward(self, hidden_states: Tensor, q_weight: Tensor, k_weight: Tensor) -> Tensor:
        out = torch.empty(hidden_states.shape, dtype=hidden_states.dtype, device=hidden_states.device)
        q, k, v = hidden_states.split(self.widths, 1)
        to_q, to_k, to_v = out.split(self.widths, 1)
        for source, weight, target in ((q, q_weight, to_q), (k, k_weight, to_k)):
            heads = source.contiguous().view(-1, self.size)
            normed = package.rms_norm_forward(heads, weight.contiguous(), self.eps, 0.0, "llama", None)[0]
            target.copy_(normed.view(target.shape))
        to_v.copy_(v)
        return out
