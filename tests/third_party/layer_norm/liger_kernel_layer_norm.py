"""Mean and variance in two passes over a row in registers, in fp32, rounded once."""

import triton  # noqa: F401
from liger_kernel.ops import layer_norm as package
from torch import Tensor, nn

KERNELS = (package._layer_norm_forward_kernel,)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        return package.layer_norm_forward(x, weight, bias, self.eps)[0]
