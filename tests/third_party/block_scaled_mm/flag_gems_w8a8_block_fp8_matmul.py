"""FP8 tensor cores within a block of k, scales and sums of blocks in fp32."""

import os

import torch
import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.ops.w8a8_block_fp8_matmul import (
    w8a8_block_fp8_matmul,
    w8a8_block_fp8_matmul_kernel,
)

KERNELS = (getattr(w8a8_block_fp8_matmul_kernel, "jit_function", w8a8_block_fp8_matmul_kernel),)
WHERE = "group_n in (16, 32, 64, 128) and group_k in (32, 64, 128)"  # its tiles are these blocks


class Model(nn.Module):
    def __init__(self, group_n: int = 128, group_k: int = 128) -> None:
        super().__init__()
        self.block = [group_n, group_k]

    def forward(self, a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor) -> Tensor:
        a, b, a_scales, b_scales = (t.contiguous() for t in (a, b, a_scales, b_scales))
        return w8a8_block_fp8_matmul(a, b, a_scales, b_scales, self.block, torch.float32)
