"""Its flash_attn_varlen_func without a mask; the longest length is read on the host."""

import os
from itertools import pairwise

import torch
import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.ops import flash_kernel
from flag_gems.ops.attention import flash_attn_varlen_func

KERNELS = [getattr(value, "jit_function", value) for value in vars(flash_kernel).values()]
WHERE = "head_dim >= 16"  # what its dots take
DEFECTS = {
    "specials": "an infinity in V comes out as NaN, probably from rows past the end, loaded without `other`"
}


class Model(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> Tensor:
        # Not contiguous(): k and v must have the same strides, of single tokens too.
        q, k, v = (t.clone(memory_format=torch.contiguous_format) for t in (q, k, v))
        bounds = cu_seqlens_q.tolist()
        longest = max((end - start for start, end in pairwise(bounds)), default=0)
        return flash_attn_varlen_func(q, k, v, longest, cu_seqlens_q, longest, cu_seqlens_k)
