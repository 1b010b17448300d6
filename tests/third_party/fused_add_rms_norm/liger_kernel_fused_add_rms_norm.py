"""Casting mode "gemma": the sum rounded to bf16, its norm in fp32, rounded once."""

import triton  # noqa: F401
from liger_kernel.ops import fused_add_rms_norm as package
from torch import Tensor, nn

KERNELS = (package._fused_add_rms_norm_forward_kernel,)
DEFECTS = {"specials": "the weight is added to an offset of 0, and -0 + 0 is +0: a zero loses its sign"}


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor, residual: Tensor, weight: Tensor) -> dict[str, Tensor]:
        x, residual, weight = x.contiguous(), residual.contiguous(), weight.contiguous()
        out, total, *_ = package.fused_add_rms_norm_forward(x, residual, weight, self.eps, 0.0, "gemma")
        return {"out": out, "residual": total}
