"""How one example tensor is drawn again: the same bits from the same seed in the judge and in a worker."""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from atrex.inputs import bits, raw_bytes
from atrex.problem import Draw
from atrex.records import Record

MAX_EXAMPLE_BYTES = 128 << 10  # of one example that is shipped as it is


class Recipe(Record):
    """What is drawn for an input.

    normal: N(mean, std), cut to [low, high] where these are finite. uniform: [low, high). integers: low to
    high, both included. permutation: each integer below the extent once. values: elements of the example,
    drawn with replacement. scaled: the example times one random factor between 1/2 and 2, which keeps
    symmetry, order, definiteness and zeros. example: the example itself.
    """

    kind: Literal["normal", "uniform", "integers", "permutation", "values", "scaled", "example"]
    dtype: str  # as torch names it
    shape: tuple[int, ...]  # of the example
    mean: float = 0.0
    std: float = 0.0
    low: float = 0.0
    high: float = 0.0
    data: str = ""  # the example's bytes, compressed, in base64

    @property
    def redrawn(self) -> bool:
        """Whether another seed gives other values."""
        return self.kind != "example" and not (self.kind in ("normal", "uniform") and self.spread == 0)

    @property
    def spread(self) -> float:
        """Nought where a floating recipe gives one value only."""
        return self.std if self.kind == "normal" else self.high - self.low

    @property
    def any_shape(self) -> bool:
        """Whether it can be drawn at other extents."""
        return self.kind not in ("example", "scaled")

    def draw(self, draw: Draw, shape: Sequence[int]) -> Tensor:
        """Values of this shape on the draw's device. Raises ValueError for an example of another shape."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        if self.kind == "normal":
            return self._normal(draw, shape).to(dtype)
        if self.kind == "uniform":
            return (self.low + draw.uniform(shape).double() * (self.high - self.low)).to(dtype)
        if self.kind == "integers":
            return (draw.integers(shape, int(self.high - self.low) + 1, torch.int64) + int(self.low)).to(
                dtype
            )
        if self.kind == "permutation":
            return draw.permutation(math.prod(shape)).view(*shape).to(dtype)
        values = self.example().to(draw.device)
        if self.kind == "values":
            at = draw.integers(shape, values.numel(), torch.int64)
            return bits(values).view(-1)[at].view(dtype)
        if tuple(shape) != self.shape:
            raise ValueError(f"an example of {list(self.shape)} has no values for {list(shape)}")
        if self.kind == "example" or not dtype.is_floating_point:
            return values
        return (values.double() * torch.exp2(2 * draw.uniform((1,)).double() - 1)).to(dtype)

    def _normal(self, draw: Draw, shape: Sequence[int]) -> Tensor:
        value = draw.normal(shape, 1.0, torch.float32).double() * self.std + self.mean
        return value.clamp(self.low, self.high) if self.low < self.high else value

    def example(self) -> Tensor:
        """The example tensor. Raises ValueError for data that is not what it says."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        size = math.prod(self.shape) * dtype.itemsize
        try:
            raw = zlib.decompressobj().decompress(base64.b64decode(self.data, validate=True), size + 1)
        except (zlib.error, binascii.Error) as error:
            raise ValueError(f"the example's data is damaged: {error}") from None
        if len(raw) != size:
            raise ValueError(f"the example holds {len(raw)} bytes, not {size}")
        if not size:
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).view(self.shape)


def guess(tensor: Tensor) -> Recipe:
    """The recipe by an example's statistics. Runs where the example was made, on its values only."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(tensor.shape)
    if not tensor.numel():
        return Recipe(kind="uniform", dtype=dtype, shape=shape)
    if not tensor.is_floating_point():
        return _integers(tensor, dtype, shape)
    wide = tensor.double()
    if not bool(wide.isfinite().all()):
        return with_example(tensor, "example")
    low, high, mean = float(wide.min()), float(wide.max()), float(wide.mean())
    std = float(wide.std(correction=0))
    if tensor.numel() < 16:  # too few to tell a distribution: about as large, and of signs that occur
        spread = max(high - low, abs(high), abs(low), 1e-3)
        return Recipe(kind="uniform", dtype=dtype, shape=shape, low=min(low, high - spread), high=high)
    if _kept(tensor) and _structured(wide):
        return with_example(tensor, "scaled")
    if _few_values(wide):
        return with_example(tensor, "values")
    plain = min(mean - low, high - mean) > 1.9 * std  # a uniform sample reaches 1.73 deviations, no further
    if not plain:
        return Recipe(kind="uniform", dtype=dtype, shape=shape, low=low, high=high)
    cut = low >= 0 or high <= 0 or max(mean - low, high - mean) > 8 * std
    edges = (low, high) if cut else (0.0, 0.0)
    return Recipe(kind="normal", dtype=dtype, shape=shape, mean=mean, std=std, low=edges[0], high=edges[1])


def _integers(tensor: Tensor, dtype: str, shape: tuple[int, ...]) -> Recipe:
    flat = tensor.reshape(-1).to(torch.int64)
    low, high = int(flat.min()), int(flat.max())
    ordered = flat.sort().values
    if flat.numel() > 2 and low < high and _kept(tensor) and torch.equal(ordered, flat):
        return with_example(tensor, "example")  # offsets and the like: out of order they mean nothing
    if flat.numel() > 2 and torch.equal(ordered.cpu(), torch.arange(flat.numel())):
        return Recipe(kind="permutation", dtype=dtype, shape=shape)
    return Recipe(kind="integers", dtype=dtype, shape=shape, low=float(low), high=float(high))


def _kept(tensor: Tensor) -> bool:
    """Whether an example is small enough to be carried."""
    return tensor.numel() * tensor.element_size() <= MAX_EXAMPLE_BYTES


def _structured(wide: Tensor) -> bool:
    """Symmetric or triangular matrices, and rows that are probabilities: redrawn they would be neither."""
    if wide.ndim < 1 or wide.shape[-1] < 2:
        return False
    if bool((wide >= 0).all()) and bool(((wide.sum(-1) - 1).abs() < 1e-3).all()):
        return True
    if wide.ndim < 2 or wide.shape[-1] != wide.shape[-2]:
        return False
    symmetric = torch.allclose(wide, wide.mT, rtol=1e-5, atol=0)
    triangular = any(torch.equal(part, wide) for part in (wide.tril(), wide.triu()))
    return symmetric or triangular


def _few_values(wide: Tensor) -> bool:
    """One-hot rows, masks of zeros and infinities, constants: no distribution with a density."""
    return len(torch.unique(wide.reshape(-1)[: 1 << 16])) <= max(2, min(wide.numel(), 1 << 16) // 64)


def with_example(tensor: Tensor, kind: Literal["values", "scaled", "example"]) -> Recipe:
    """A recipe that carries the example. Raises ValueError where it is too large to be carried."""
    kept = tensor.detach().cpu().contiguous()
    if kind == "values":
        kept = torch.unique(kept.reshape(-1)[: 1 << 16]) if kept.is_floating_point() else kept
        kept = kept[: 1 << 12]
    size = kept.numel() * kept.element_size()
    if not _kept(kept):
        raise ValueError(f"an example of {size} bytes is too large to be kept as it is")
    raw = raw_bytes(kept).numpy().tobytes() if size else b""
    data = base64.b64encode(zlib.compress(raw, 6)).decode()
    return Recipe(kind=kind, dtype=str(kept.dtype).removeprefix("torch."), shape=tuple(kept.shape), data=data)
