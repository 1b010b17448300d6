"""Memory whose neighbours may not be touched: a tensor between two closed pages of a CPU's address space."""

from __future__ import annotations

import ctypes
import mmap
import os

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes: what PyTorch gives a fresh tensor, and kernels may count on
_PROT_NONE = 0
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def between_closed_pages(tensor: Tensor) -> Tensor:
    """A contiguous copy of a CPU tensor; an access far outside of it ends the process.

    Its last byte lies less than 64 bytes before a closed page, its first as near to one as its size allows.
    Raises OSError if the kernel refuses.
    """
    nbytes, page = tensor.numel() * tensor.element_size(), mmap.PAGESIZE
    inner = -(-max(1, nbytes) // page) * page
    area = mmap.mmap(-1, inner + 2 * page)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for at in (0, page + inner):
        if _libc.mprotect(start + at, page, _PROT_NONE):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if not nbytes:
        return tensor.clone()
    offset = page + (inner - nbytes) // _ALIGNMENT * _ALIGNMENT
    # The tensor holds the area, which is given back with it.
    made = torch.frombuffer(area, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)
    return made.copy_(tensor)
