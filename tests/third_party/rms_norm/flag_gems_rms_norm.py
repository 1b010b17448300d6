"""One tile up to 4096 columns, beyond them an autotuned loop over tiles."""

import os

import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.ops.rms_norm import rms_norm_forward, rms_norm_kernel, rms_norm_loop_kernel

KERNELS = (rms_norm_kernel.jit_function, rms_norm_loop_kernel.jit_function)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm_forward(x, weight.shape, weight, self.eps)[0]
