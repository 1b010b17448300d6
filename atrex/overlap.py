"""Whether tensors share memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def overlaps(a: Tensor, b: Any) -> bool:
    """Whether two tensors share memory; two views of one buffer may lie side by side in it."""
    if type(b) is not Tensor or a.device != b.device or not (a.numel() and b.numel()):
        return False
    (start, stop), (other_start, other_stop) = _span(a), _span(b)
    if start >= other_stop or other_start >= stop:
        return False
    size = a.element_size()
    distance = b.data_ptr() - a.data_ptr()
    if b.element_size() != size or distance % size:
        return True
    first = min(start, other_start)
    taken = torch.zeros((max(stop, other_stop) - first) // size, dtype=torch.bool, device=a.device)
    torch.as_strided(taken, a.shape, a.stride(), (a.data_ptr() - first) // size).fill_(True)
    return bool(torch.as_strided(taken, b.shape, b.stride(), (b.data_ptr() - first) // size).any())


def _span(tensor: Tensor) -> tuple[int, int]:
    """First address of a tensor's elements, and the one behind its last."""
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()
