"""Rows as PyTorch's fused attention needs them."""

from __future__ import annotations

import torch
from torch import Tensor

_BYTES = 16  # of a vector load


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it if not all of its rows begin at multiples of 16 bytes.

    scaled_dot_product_attention on CUDA does not look: with rows at odd strides it gives NaN or a misaligned
    access (torch 2.11 on an H200, seen by the gate `layouts`).
    """
    unit = _BYTES // tensor.element_size()
    steps = (tensor.storage_offset(), *tensor.stride()[:-1])
    return (
        tensor.clone(memory_format=torch.contiguous_format) if any(step % unit for step in steps) else tensor
    )
