"""The sum in fp32, rounded once; without a factor."""

import os

import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.fused.moe_sum import moe_sum, moe_sum_kernel

KERNELS = (moe_sum_kernel,)
INIT = {"routed_scaling_factor": [1.0]}


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0) -> None:
        super().__init__()
        if routed_scaling_factor != 1:
            raise NotImplementedError("no scaling factor")

    def forward(self, expert_outputs: Tensor) -> Tensor:
        terms = expert_outputs.contiguous()
        out = terms.new_empty((terms.shape[0], terms.shape[2]))
        moe_sum(terms, out)
        return out
