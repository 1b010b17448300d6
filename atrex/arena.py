"""Tensors between worker and judge: raw bytes in memory that the judge made, sealed and sized."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from atrex.channel import sealed_memory
from atrex.inputs import raw_bytes
from atrex.protocol import TensorReport

_ALIGNMENT = 64
_MOST_EXTENT = 1 << 48
# Reading a tensor of another kind (quantised, say) out of raw memory would end the judge.
PLAIN = frozenset(
    getattr(torch, name)
    for name in (
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
        *("bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
    )
)


def padded(nbytes: int) -> int:
    """Bytes that a tensor takes in an arena."""
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class ImpossibleReport(ValueError):
    """A worker's description of a tensor that cannot be true."""


class Arena:
    """The judge's side: anonymous shared memory that the worker can fill but neither shrink nor grow."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = max(4096, nbytes + 4096)
        self.fd = sealed_memory("atrex-arena", self.nbytes)
        self._map = mmap.mmap(self.fd, 0)

    def close(self) -> None:
        """Give the memory back once the worker has, too."""
        os.close(self.fd)
        del self._map

    def read(self, report: TensorReport, device: torch.device) -> Tensor:
        """A private copy of one tensor on a device. Raises ImpossibleReport."""
        dtype = getattr(torch, report.dtype, None)
        if not isinstance(dtype, torch.dtype) or dtype not in PLAIN:
            raise ImpossibleReport(f"the worker reported a tensor of {report.dtype!r}")
        if any(not 0 <= extent < _MOST_EXTENT for extent in report.shape):
            raise ImpossibleReport(f"the worker reported a tensor {report.dtype!r} {list(report.shape)}")
        count = math.prod(report.shape)
        if (
            report.offset < 0
            or report.offset % _ALIGNMENT
            or report.offset + count * dtype.itemsize > self.nbytes
        ):
            raise ImpossibleReport("the worker reported a tensor outside the shared memory")
        if not count:
            return torch.empty(report.shape, dtype=dtype, device=device)
        view = torch.frombuffer(self._map, dtype=dtype, count=count, offset=report.offset)
        return view.to(device, copy=True).view(report.shape)


class ArenaWriter:
    """The worker's side: tensors are written one after the other."""

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = fds
        self._map = mmap.mmap(fds[0], 0) if fds else None
        self._next = 0

    def write(self, tensor: Tensor) -> int:
        """Copy a tensor's bytes; the offset, or -1 where they do not fit (it is not what was declared)."""
        size = tensor.numel() * tensor.element_size()
        if self._map is None or self._next + size > len(self._map):
            return -1
        offset, self._next = self._next, self._next + padded(size)
        if size:
            target = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=offset)
            target.copy_(raw_bytes(tensor.detach()))
        return offset

    def close(self) -> None:
        """Forget the mapping; it is unmapped when no tensor refers to it any more."""
        self._map = None
        for fd in self._fds:
            os.close(fd)
