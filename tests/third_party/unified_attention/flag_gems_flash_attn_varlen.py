"""Its flash_attn_varlen_func over pages, causal; the longest lengths are read on the host."""

import os
from itertools import pairwise

import torch
import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.ops import flash_kernel
from flag_gems.ops.attention import flash_attn_varlen_func

KERNELS = [getattr(value, "jit_function", value) for value in vars(flash_kernel).values()]
WHERE = "head_size >= 16"  # what its dots take


class Model(nn.Module):
    def forward(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        cu_seqlens_q: Tensor,
        seqused_k: Tensor,
        block_table: Tensor,
    ) -> Tensor:
        # Not contiguous(): both caches must have the same strides, of single blocks too.
        q, k_cache, v_cache = (t.clone(memory_format=torch.contiguous_format) for t in (q, k_cache, v_cache))
        bounds = cu_seqlens_q.tolist()
        queries = max((end - start for start, end in pairwise(bounds)), default=0)
        keys = max(seqused_k.tolist(), default=0)
        pages = {"seqused_k": seqused_k, "block_table": block_table.contiguous(), "causal": True}
        return flash_attn_varlen_func(q, k_cache, v_cache, queries, cu_seqlens_q, keys, **pages)
