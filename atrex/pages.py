"""Memory of a CPU that PyTorch cannot give: between closed pages, or one block seen many times over."""

from __future__ import annotations

import ctypes
import math
import mmap
import os

import torch
from torch import Tensor

from atrex.linux import close_pages, map_file_at

_ALIGNMENT = 64  # bytes: what PyTorch gives a fresh tensor, and kernels may count on
_LEAST_BYTES = 1 << 28  # to see a block repeatedly: below, memory is written anew as quickly
_MOST_BYTES = 1 << 26  # of the block
_MOST_MAPPINGS = 1 << 14  # of one tensor; a process may have 65530


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
        close_pages(start + at, page)
    if not nbytes:
        return tensor.clone()
    offset = page + (inner - nbytes) // _ALIGNMENT * _ALIGNMENT
    # The tensor holds the area, which is given back with it.
    made = torch.frombuffer(area, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)
    return made.copy_(tensor)


def seen_repeatedly(block: Tensor, rows: int) -> Tensor | None:
    """A CPU block's rows over and over until there are `rows`, in one block's memory; None: it cannot be.

    For inputs so large that only a block is drawn: touching them anew costs more than a kernel that reads
    them. Every page is private, so a write changes the one place that it goes to. Raises OSError if the
    kernel refuses.
    """
    nbytes, page = block.numel() * block.element_size(), mmap.PAGESIZE
    unit = math.lcm(nbytes, page)  # where a repetition begins with a page
    total = nbytes // block.shape[0] * rows
    if total < _LEAST_BYTES or unit > _MOST_BYTES or not 4 * unit <= total <= _MOST_MAPPINGS * unit:
        return None
    area = mmap.mmap(-1, -(-total // unit) * unit, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(area))
    file = os.memfd_create("atrex-block", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, unit)
        with mmap.mmap(file, unit) as once:
            first = torch.frombuffer(once, dtype=block.dtype).view(-1, *block.shape)
            first.copy_(block.expand_as(first))
            del first  # or the mapping stays
        for at in range(start, start + len(area), unit):
            map_file_at(at, unit, file)
    finally:
        os.close(file)
    count = total // block.element_size()
    return torch.frombuffer(area, dtype=block.dtype, count=count).view(rows, *block.shape[1:])
