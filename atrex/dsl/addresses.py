"""Addresses that an interpreted kernel touches: where its tensors lie, and what is outside of all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

MOST_VIOLATIONS = 64
"""Violations kept by one `address_check`; the rest are only counted."""

Kind = Literal["load", "store", "atomic"]


@dataclass(frozen=True, slots=True)
class Violation:
    """One lane of an access that lies in none of the tensors passed to its launch. It was not performed."""

    kernel: str
    kind: Kind
    address: int
    nearest: str
    """The tensor argument that is closest, e.g. `x + 4096 bytes, reaching 2 bytes past its end`."""
    program: tuple[int, int, int]

    def __str__(self) -> str:
        return f"{self.kernel}, program {self.program}: {self.kind} at {self.address:#x}, {self.nearest}"


class Violations(list[Violation]):
    """The first `MOST_VIOLATIONS` violations; `total` counts every one."""

    total: int = 0


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes from a tensor's first element to the end of its last: the view's own, not its storage's."""

    name: str
    start: int
    stop: int

    def reached_by(self, address: int, size: int) -> tuple[int, str]:
        """Bytes by which an access leaves this extent, and words for it."""
        before, past = self.start - address, address + size - self.stop
        where = f"{before} bytes before its start" if before > 0 else f"reaching {past} bytes past its end"
        return max(before, past), f"{self.name} {'-' if before > 0 else '+'} {abs(before)} bytes, {where}"


def extents(name: str, value: Any) -> Iterator[Extent]:
    """Extents of a tensor, of a host tensor descriptor's base, or of what a tuple holds."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from extents(f"{name}[{index}]", item)
        return
    while hasattr(value, "base"):  # a tensor descriptor, or a tensor under another dtype
        value = value.base
    if isinstance(value, torch.Tensor):
        start, size = value.data_ptr(), value.element_size()
        last = sum((n - 1) * stride for n, stride in zip(value.shape, value.stride(), strict=True))
        yield Extent(name, start, start + (last + 1) * size if value.numel() else start)
