"""Its eps bounds the largest magnitude, ours the scale: 448 times as much."""

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
    def __init__(self, group_size: int = 128) -> None:
        super().__init__()
        self.group_size = group_size

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = x.contiguous()
        quantized, scales = per_token_group_quant_fp8(x, self.group_size, 448e-10, torch.float8_e4m3fn)
        return {"quantized": quantized, "scales": scales}
