"""One group a row."""

import os

import torch
import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.ops.per_token_group_quant_fp8 import (
    _per_token_group_quant_fp8,
    per_token_group_quant_fp8,
)

KERNELS = (_per_token_group_quant_fp8,)


class Model(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.contiguous()
        quantized, scales = per_token_group_quant_fp8(x, x.shape[1], 1e-12, torch.float8_e4m3fn)
        return quantized, scales.view(x.shape[0])
