"""Building the inputs of a call from their recipe: the same bits in the judge and in the worker."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from atrex.contract import LayoutKind
from atrex.pages import seen_repeatedly
from atrex.problem import Draw, Problem
from atrex.protocol import Edit, Fill, InputSpec, SpecialName
from atrex.records import Shape

HUGE = 2.0**100
# Primes: what a row holds must not follow from its index modulo a tile size.
_TILE_ROWS = (1021, 509, 251, 127, 61)
_TILE_ELEMENTS = 1 << 19
GUARD_BYTES = 1 << 16  # at least a row of 32 Ki bf16 elements on either side
_SEED_MASK = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Guarded:
    """A tensor inside a larger buffer whose remainder holds a known pattern.

    Where the tensor lies is noted when it is made: whoever gets it may point it elsewhere (Triton in its
    interpreter does that with what it allocates).
    """

    name: str
    buffer: Tensor  # 1-D, the tensor's dtype
    tensor: Tensor
    fill: Fill
    _start: int = field(init=False)
    _shape: torch.Size = field(init=False)
    _strides: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_start", self.tensor.storage_offset())
        object.__setattr__(self, "_shape", self.tensor.shape)
        object.__setattr__(self, "_strides", self.tensor.stride())

    def intact(self) -> bool:
        """Whether every element of the buffer outside the tensor still holds the pattern."""
        rest = bits(self._outside())
        expected = bits(torch.full((1,), fill_value(self.buffer.dtype, self.fill), dtype=self.buffer.dtype))
        return bool((rest == expected.to(rest.device)).all())

    def _outside(self) -> Tensor:
        """The elements of the buffer that are not the tensor's."""
        own = torch.as_strided(self.buffer, self._shape, self._strides, self._start)
        if own.is_contiguous():
            return torch.cat((self.buffer[: self._start], self.buffer[self._start + own.numel() :]))
        outside = torch.ones(self.buffer.shape, dtype=torch.bool, device=self.buffer.device)
        torch.as_strided(outside, self._shape, self._strides, self._start).fill_(False)
        return self.buffer[outside]


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bytes as integers of the same width, so that NaN equals NaN and -0 differs from 0."""
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(width)


def raw_bytes(tensor: Tensor) -> Tensor:
    """The tensor's bytes in row-major order, one-dimensional uint8."""
    whole = bits(tensor)  # contiguous, yet of any stride where an extent is 1
    return whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def fill_value(dtype: torch.dtype, fill: Fill) -> float | int:
    """The poison of a dtype; integers, which have no NaN, get the largest value less 0 or 1."""
    if dtype is torch.bool:
        return True
    if dtype.is_complex:  # scratch of a candidate: its real part is poison enough
        return fill_value(torch.float32, fill)
    if dtype.is_floating_point:
        return float("nan") if fill == "nan" else min(HUGE, torch.finfo(dtype).max)
    return torch.iinfo(dtype).max - (fill == "huge")


def build_inputs(
    problem: Problem, spec: InputSpec, device: torch.device
) -> tuple[dict[str, Tensor], list[Guarded]]:
    """Draw, edit and lay out the inputs of one call, by input name.

    Raises KeyError for an unknown source or input: a fault of the harness.
    """
    values = draw_values(problem, spec, device)
    tensors = dict[str, Tensor]()
    guards = list[Guarded]()
    for name, value in values.items():
        layout = spec.layouts.get(name, "contiguous")
        if spec.guard is None and layout == "contiguous":
            tensors[name] = value.contiguous()
            continue
        placed = place(name, value, layout, spec.guard)
        tensors[name] = placed.tensor
        if spec.guard is not None:
            guards.append(placed)
    return tensors, guards


def draw_values(problem: Problem, spec: InputSpec, device: torch.device) -> dict[str, Tensor]:
    """The input values, before layout and guard bands."""
    shape, rows = problem.full(spec.shape), problem.rows
    if spec.tile_rows is not None and rows is not None:
        shape = problem.resize(shape, **{rows: min(shape.dims[rows], spec.tile_rows)})
    generator = torch.Generator(device=device)
    generator.manual_seed(spec.seed & _SEED_MASK)
    values = problem.source(spec.source)(Draw(shape, generator, device))
    if spec.tile_rows is not None and rows is not None:
        for name in problem.row_inputs():
            turned = spec.turned and _turns(problem, name)
            values[name] = repeat_rows(values[name], spec.dims[rows], turned=turned)
    for edit in spec.edits:
        values[edit.input] = apply_edit(values[edit.input], edit)
    return values


def _turns(problem: Problem, name: str) -> bool:
    """Whether rows of an input may be rotated: values of one kind, drawn alike."""
    tensor = problem.spec.inputs[name]
    return tensor.role == "data" and len(tensor.shape) > 1 and not tensor.optional


def repeat_rows(block: Tensor, rows: int, *, turned: bool = False) -> Tensor:
    """Repeat a block of rows until there are `rows` of them; `turned`: rotate each repetition by one more."""
    if not block.shape[0]:
        return block
    if block.device.type == "cpu" and not turned:
        seen = seen_repeatedly(block.contiguous(), rows)
        if seen is not None:
            return seen
    out = torch.empty((rows, *block.shape[1:]), dtype=block.dtype, device=block.device)
    for start in range(0, rows, block.shape[0]):
        count = min(block.shape[0], rows - start)
        if turned and start:
            turn = start // block.shape[0] % block.shape[-1]
            out[start : start + count, ..., turn:] = block[:count, ..., : block.shape[-1] - turn]
            out[start : start + count, ..., :turn] = block[:count, ..., block.shape[-1] - turn :]
        else:
            out[start : start + count] = block[:count]
    return out


def tile_rows_for(rows: int, width: int) -> int | None:
    """Rows of a block to repeat for inputs of this size, or None for inputs small enough to draw whole."""
    if rows * width <= 2 * _TILE_ELEMENTS:
        return None
    fitting = (block for block in _TILE_ROWS if block * width <= _TILE_ELEMENTS)
    return min(rows, next(fitting, _TILE_ROWS[-1]))


def window_spec(problem: Problem, tiled: InputSpec, start: int, count: int) -> InputSpec:
    """Rows [start, start + count) of a tiled recipe, as a small recipe of their own.

    Only for operators whose rows are independent of each other, and for recipes whose edits treat rows alike.
    Raises ValueError for other edits.
    """
    if moving := [edit.kind for edit in tiled.edits if edit.kind not in ("scale", "broadcast_rows")]:
        raise ValueError(f"a window of a recipe with {moving[0]}: its rows are not those of its block")
    assert problem.rows is not None
    rows = tiled.dims[problem.rows]
    block = min(tiled.tile_rows or rows, rows)
    at = tuple(row % block for row in range(start, start + count))
    turns = tuple(row // block for row in range(start, start + count))
    takes = tuple(
        Edit(
            kind="take_rows", input=name, at=at, turns=turns if tiled.turned and _turns(problem, name) else ()
        )
        for name in problem.row_inputs()
    )
    shape = problem.resize(tiled.shape, **{problem.rows: block})
    changed = {"shape": shape, "edits": (*tiled.edits, *takes), "tile_rows": None, "turned": False}
    return tiled.model_copy(update=changed)


def negations(
    problem: Problem, shape: Shape, dice: random.Random, row: int | None = None
) -> tuple[Edit, ...]:
    """One row to negate in each floating data input: `row` where its rows are the problem's, else any."""
    ours = problem.row_inputs()
    edits = list[Edit]()
    for name, extents in _changeable(problem, shape):
        if extent := next(iter(extents), 0):
            at = row if row is not None and name in ours else dice.randrange(extent)
            edits.append(Edit(kind="negate_rows", input=name, at=(at,)))
    return tuple(edits)


def _changeable(problem: Problem, shape: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The floating data inputs, whose values any call may change, with their extents."""
    for name, tensor in problem.spec.inputs.items():
        floating = problem.tensor_dtype(tensor, shape).is_floating_point
        if tensor.role == "data" and floating and not tensor.optional:
            yield name, problem.tensor_shape(tensor, shape)


def touches(problem: Problem, shape: Shape, dice: random.Random, row: int | None = None) -> tuple[Edit, ...]:
    """One element of each floating data input becomes 1: less than who reads a part of it would notice.

    It lies in `row` where its rows are the problem's, else anywhere.
    """
    ours = problem.row_inputs()
    edits = list[Edit]()
    for name, extents in _changeable(problem, shape):
        if size := math.prod(extents):
            width = size // extents[0]
            inside = row is not None and name in ours
            at = row * width + dice.randrange(width) if inside and row is not None else dice.randrange(size)
            edits.append(Edit(kind="place", input=name, at=(at,), values=("one",)))
    return tuple(edits)


def special_value(name: SpecialName, dtype: torch.dtype) -> float:
    """A named special value of a floating dtype."""
    info = torch.finfo(dtype)
    subnormal = info.smallest_normal * info.eps * 3  # three units in the last subnormal place
    named = {
        "inf": float("inf"),
        "nan": float("nan"),
        "0": 0.0,
        "subnormal": subnormal,
        "max": info.max,
        "one": 1.0,
    }
    plain = name.removeprefix("-")
    return -named[plain] if name.startswith("-") else named[plain]


def apply_edit(tensor: Tensor, edit: Edit) -> Tensor:
    """One change to the values of one input; returns a new or changed tensor."""
    if edit.kind == "scale":
        return torch.ldexp(tensor, torch.tensor(edit.exponent, device=tensor.device)).to(tensor.dtype)
    if edit.kind == "place":
        flat = tensor.contiguous().view(-1)
        index = torch.tensor(edit.at, dtype=torch.int64, device=tensor.device)
        values = [special_value(name, tensor.dtype) for name in edit.values]
        placed = torch.tensor(values, dtype=torch.float64, device=tensor.device).to(tensor.dtype)
        return bits(flat).index_copy(0, index, bits(placed)).view(tensor.dtype).view(tensor.shape)
    # Rows move as bits: not every operation exists for the eight-bit dtypes.
    raw = bits(tensor)
    if edit.kind == "permute_rows":
        return raw[permutation(tensor.shape[0], edit.seed).to(tensor.device)].view(tensor.dtype)
    if edit.kind == "broadcast_rows":
        return raw[:1].expand(raw.shape).contiguous().view(tensor.dtype) if tensor.shape[0] else tensor
    rows = torch.tensor(edit.at, dtype=torch.int64, device=tensor.device)
    if edit.kind == "take_rows":
        return _rotated(raw[rows], edit.turns).view(tensor.dtype)
    negated = -raw[rows].view(tensor.dtype).to(torch.float32)
    return raw.index_copy(0, rows, bits(negated.to(tensor.dtype))).view(tensor.dtype)


def apply_edit_in_place(tensor: Tensor, edit: Edit) -> None:
    """The same in the tensor's own memory; a few elements or rows cost no copy of all."""
    if edit.kind in ("place", "negate_rows") and tensor.is_contiguous():
        flat = bits(tensor).view(-1) if edit.kind == "place" else bits(tensor)
        rows = torch.tensor(edit.at, dtype=torch.int64, device=tensor.device)
        few = flat[rows].view(tensor.dtype)
        start = edit.model_copy(update={"at": tuple(range(len(edit.at)))})
        flat.index_copy_(0, rows, bits(apply_edit(few, start)))
    else:
        tensor.copy_(apply_edit(tensor, edit))


def _rotated(rows: Tensor, turns: tuple[int, ...]) -> Tensor:
    """Each row rotated along its last axis by its own turn."""
    if not turns or not rows.numel():
        return rows
    place = torch.arange(rows.shape[-1], device=rows.device)
    by = torch.tensor(turns, device=rows.device).view(-1, *[1] * (rows.ndim - 1))
    return rows.gather(-1, ((place - by) % rows.shape[-1]).expand(rows.shape))


def permutation(rows: int, seed: int) -> Tensor:
    """The row permutation of a `permute_rows` edit."""
    generator = torch.Generator()
    generator.manual_seed(seed & _SEED_MASK)
    return torch.randperm(rows, generator=generator)


def place(name: str, value: Tensor, layout: LayoutKind, guard: Fill | None) -> Guarded:
    """Put a value into a buffer with the wanted strides, offset and guard bands.

    `expanded` repeats row 0 at stride 0, so its value must already be broadcast.
    """
    shape, strides, span = _strides(value, layout)
    band = max(GUARD_BYTES // value.element_size(), span // max(1, value.shape[0] if value.ndim > 1 else 1))
    band = -(-band // 64) * 64 if guard else 0
    start = band + (1 if layout == "offset" else 0)
    fill = guard or "nan"
    buffer = torch.empty(start + span + band, dtype=value.dtype, device=value.device)
    if layout != "far_rows":  # gigabytes, of which a CPU maps what is touched
        buffer.fill_(fill_value(value.dtype, fill))
    tensor = torch.as_strided(buffer, shape, strides, start)
    source = value[:1] if layout == "expanded" else value
    target = tensor[:1] if layout == "expanded" else tensor
    target.copy_(source)
    return Guarded(name, buffer, tensor, fill)


def _strides(value: Tensor, layout: LayoutKind) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Shape, strides and the number of elements spanned, for a layout of `value`."""
    shape = tuple(value.shape)
    step = 2 if layout == "strided" else 1
    if value.ndim < 2:
        return shape, (step,) * value.ndim, max(1, value.numel() * step)
    if layout == "transposed" and value.ndim == 2:
        return shape, (1, max(1, shape[0])), max(1, value.numel())
    apart = 64 if layout == "inner_stride" and value.ndim > 2 else 0
    inner = _packed(shape[1:], step, apart)
    row = inner[0] * max(1, shape[1])
    if layout == "expanded":
        return shape, (0, *inner), max(1, row)
    if layout == "far_rows":
        pitch = max(row, far_pitch(shape[0]))
        return shape, (pitch, *inner), max(1, (shape[0] - 1) * pitch + row)
    pitch = row + {"row_stride": 64, "odd_row_stride": 3}.get(layout, 0)
    return shape, (pitch, *inner), max(1, shape[0] * pitch)


def far_pitch(rows: int) -> int:
    """Elements from one of so many rows to the next if the last quarter of them is to lie beyond 2^31."""
    return -(-(1 << 31) // max(1, rows * 3 // 4) // 64) * 64


def _packed(shape: tuple[int, ...], step: int, apart: int = 0) -> tuple[int, ...]:
    """Row-major strides whose last dimension has stride `step`, and is followed by `apart` elements."""
    strides = list[int]()
    for extent in reversed(shape):
        strides.append(step)
        step = step * max(1, extent) + (0 if len(strides) > 1 else apart)
    return tuple(reversed(strides))


def as_contiguous(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Plain contiguous copies, for the reference and the oracle."""
    return {name: tensor.contiguous() for name, tensor in tensors.items()}
