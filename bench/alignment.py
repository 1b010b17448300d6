"""Rows as PyTorch's fused attention and cuBLAS's fused linear layers need them."""

from __future__ import annotations

import torch
from torch import Tensor

_BYTES = 16  # of a vector load


def aligned(tensor: Tensor) -> Tensor:
    """The tensor, or a copy of it if its rows are not dense, apart, or all at multiples of 16 bytes.

    scaled_dot_product_attention on CUDA does not look: with rows at odd strides it gives NaN or a misaligned
    access, and cuDNN's refuses columns apart and rows that are one (stride 0). cuBLAS then rounds a product
    before it adds the bias. (torch 2.11 on an H200; the gate `layouts` saw all of it.)
    """
    unit = _BYTES // tensor.element_size()
    steps = (tensor.storage_offset(), *tensor.stride()[:-1])
    one = any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
    dense = tensor.stride(-1) == 1 and not one and not any(step % unit for step in steps)
    return tensor if dense else tensor.clone(memory_format=torch.contiguous_format)
