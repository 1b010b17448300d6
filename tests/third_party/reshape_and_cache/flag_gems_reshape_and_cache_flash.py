"""It writes in place, so into copies of the caches."""

import os

import triton  # noqa: F401
from torch import Tensor, nn

os.environ.setdefault("GEMS_VENDOR", "nvidia")  # else it runs nvidia-smi, which the sandbox does not let it

from flag_gems.fused.reshape_and_cache_flash import (
    reshape_and_cache_flash,
    reshape_and_cache_flash_kernel,
)

KERNELS = (reshape_and_cache_flash_kernel.jit_function,)


class Model(nn.Module):
    def forward(
        self, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
    ) -> dict[str, Tensor]:
        caches = [cache.contiguous().clone() for cache in (key_cache, value_cache)]
        rows = (key.contiguous(), value.contiguous())
        reshape_and_cache_flash(*rows, *caches, slot_mapping.contiguous(), "auto", None, None)
        return {"key_cache": caches[0], "value_cache": caches[1]}
