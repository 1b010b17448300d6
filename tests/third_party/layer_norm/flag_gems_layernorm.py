"""Three kernels: many short rows, a row in one tile, a loop that updates mean and variance."""

import os

import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.ops.layernorm import (
    layer_norm,
    layer_norm_loop_kernel,
    layer_norm_persistent_kernel,
    layer_norm_persistent_kernel_multiline,
)

KERNELS = (
    layer_norm_persistent_kernel_multiline.jit_function,
    layer_norm_persistent_kernel.jit_function,
    layer_norm_loop_kernel.jit_function,
)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return layer_norm(x, weight.shape, weight, bias, self.eps)[0]
