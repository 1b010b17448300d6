"""Indices that are looked at before PyTorch uses them.

On CUDA an index out of range ends the process with a device-side assertion; on the CPU it is an
IndexError, and so it is here on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from atrex.fallback.operations import names

# Operations of (self, dim, index, …), and of (self, [index of each dimension], …).
_ALONG = names(
    """index_select gather scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ index_add
    index_add_ index_copy index_copy_ index_fill index_fill_"""
)
_ADVANCED = names("index index_put index_put_ _unsafe_index _unsafe_index_put _index_put_impl_")


class CheckedIndices(TorchDispatchMode):
    """Within it, ATen's indexing raises IndexError where an index is out of range, on every device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Check the indices, then run the operation."""
        name = func.name().rpartition("::")[2].partition(".")[0]
        for index, size in _indices(name, args):
            if index.numel() and not -size <= int(index.min()) <= int(index.max()) < size:
                raise IndexError(f"{name}: an index is out of range for a dimension of {size}")
        return func(*args, **(kwargs or {}))


def _indices(name: str, args: tuple[Any, ...]) -> Iterator[tuple[Tensor, int]]:
    """Index tensors of integers with the size of the dimension that each selects from."""
    if name in _ALONG:
        if args[0].ndim:
            yield args[2], args[0].shape[args[1]]
    elif name in _ADVANCED:
        dim = 0
        for index in args[1]:
            if index is not None and index.dtype not in (torch.bool, torch.uint8):
                yield index, args[0].shape[dim]
            masked = index is not None and index.dtype in (torch.bool, torch.uint8)
            dim += index.ndim if masked else 1
    elif name == "embedding":
        yield args[1], args[0].shape[0]
