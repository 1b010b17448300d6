"""Adverse conditions around a candidate's call: poisoned memory, guard bands, a disturbed allocator.

Runs in the worker.
"""

from __future__ import annotations

import ctypes
import random
import threading
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from atrex.inputs import GUARD_BYTES, Guarded, fill_value
from atrex.protocol import Fill

Shape = tuple[tuple[int, ...], torch.dtype]

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>
_ALLOCATIONS = (
    "aten::empty",
    "aten::empty_like",
    "aten::empty_permuted",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
)
_SMALL = (64, 1024, 16384, 262144)  # elements of the scratch that a kernel may ask for
_LARGE = 256 << 20  # poison no more than this many bytes a block size


def keep_freed_memory() -> None:
    """Let glibc reuse freed blocks instead of returning them to the kernel.

    Fresh pages are zero, which would hide reads of stale memory, and their page faults would be timed
    as if they were the kernel's work; PyTorch's allocator on a GPU reuses blocks just so.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_MMAP_MAX, 0)
        libc.mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def poison_free_memory(shapes: Iterable[Shape], fill: Fill, device: torch.device) -> None:
    """Fill and free blocks of the sizes that the candidate's outputs and scratch will want."""
    for shape, dtype in shapes:
        size = max(1, torch.Size(shape).numel())
        copies = max(1, min(4, _LARGE // (size * dtype.itemsize)))
        blocks = [torch.empty(size, dtype=dtype, device=device) for _ in range(copies)]
        blocks += [torch.empty(small, dtype=dtype, device=device) for small in _SMALL]
        for block in blocks:
            block.fill_(fill_value(dtype, fill))
        del blocks


class FreshAllocations(TorchDispatchMode):
    """Poison every uninitialised allocation, and optionally give it guard bands."""

    def __init__(self, fill: Fill, *, guard: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.fill: Fill = fill
        self.guard = guard
        self.guards: list[Guarded] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation; if it only allocates, poison what it returns."""
        result = func(*args, **(kwargs or {}))
        if func.name().split(".")[0] not in _ALLOCATIONS or not isinstance(result, Tensor):
            return result
        if self.guard and result.is_contiguous():
            return self._guarded(result)
        return result.fill_(fill_value(result.dtype, self.fill))

    def _guarded(self, wanted: Tensor) -> Tensor:
        band = GUARD_BYTES // wanted.element_size()
        value = fill_value(wanted.dtype, self.fill)
        size = wanted.numel() + 2 * band
        buffer = torch.full((size,), value, dtype=wanted.dtype, device=wanted.device)
        tensor = torch.as_strided(buffer, wanted.shape, wanted.stride(), band)
        self.guards.append(Guarded(f"allocation {len(self.guards)}", buffer, tensor, self.fill))
        return tensor


class Disturbance:
    """An allocator in another state, and other work running beside the call."""

    def __init__(self, seed: int, shapes: Iterable[Shape], device: torch.device) -> None:
        self._random = random.Random(seed)
        self._sizes = [max(1, torch.Size(shape).numel()) for shape, _ in shapes]
        self._device = device
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._held: list[Tensor] = []

    def __enter__(self) -> Self:
        for _ in range(self._random.randrange(1, 6)):
            size = self._random.choice(self._sizes) * self._random.randrange(1, 3) // 2 + 64
            block = torch.empty(min(size, _LARGE), dtype=torch.uint8, device=self._device)
            block.fill_(self._random.randrange(256))
            if self._random.random() < 0.5:
                self._held.append(block)
        if self._device.type == "cuda":
            self._load_stream()
        elif self._random.random() < 0.5:
            self._thread = threading.Thread(target=self._spin, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _spin(self) -> None:
        a = torch.ones(128, 128)
        while not self._stop.is_set():
            a = (a @ a).clamp(-1, 1)

    def _load_stream(self) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            a = torch.ones(1024, 1024, device=self._device)
            for _ in range(self._random.randrange(1, 8)):
                a = a @ a * 1e-3
        self._held.append(a)
