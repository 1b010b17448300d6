"""Casting mode "gemma": the sum, the root and both products in fp32, rounded once."""

import triton  # noqa: F401
from liger_kernel.ops import rms_norm as package
from torch import Tensor, nn

KERNELS = (package._rms_norm_forward_kernel, package._block_rms_norm_forward_kernel)
DEFECTS = {"specials": "the weight is added to an offset of 0, and -0 + 0 is +0: a zero loses its sign"}


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        return package.rms_norm_forward(x.contiguous(), weight.contiguous(), self.eps, 0.0, "gemma", None)[0]
