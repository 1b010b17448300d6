"""Inputs: the same bits for the same recipe, true layouts, and guard bands that notice one element."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from typing import get_args

import pytest
import torch
from torch import Tensor

from atrex.contract import LayoutKind
from atrex.inputs import (
    Guarded,
    apply_edit,
    as_contiguous,
    bits,
    build_inputs,
    draw_values,
    fill_value,
    permutation,
    place,
    raw_bytes,
    repeat_rows,
    special_value,
    tile_rows_for,
    window_spec,
)
from atrex.problem import load_problem
from atrex.protocol import Edit, Fill, InputSpec, SpecialName
from atrex.records import Shape

CPU = torch.device("cpu")
PROBLEM = load_problem("rms_norm")
# Rows far apart span gigabytes, between which nobody looks for what was overwritten.
LAYOUTS: tuple[LayoutKind, ...] = tuple(kind for kind in get_args(LayoutKind) if kind != "far_rows")
FILLS: tuple[Fill, ...] = get_args(Fill)
SOURCES = ("production", *(name for probes in PROBLEM.module.PROBES.values() for name in probes))
EDITS = (
    Edit(kind="scale", input="x", exponent=-3),
    Edit(kind="place", input="x", at=(0, 5, 34), values=("nan", "-0", "subnormal")),
    Edit(kind="permute_rows", input="x", seed=9),
    Edit(kind="broadcast_rows", input="x"),
    Edit(kind="take_rows", input="x", at=(3, 3, 0)),
)


def spec(rows: int = 5, hidden: int = 7, **changes: object) -> InputSpec:
    shape = Shape(init={"eps": 1e-6}, dims={"token_count": rows, "hidden_size": hidden})
    return InputSpec.model_validate({"shape": shape, "seed": 11} | changes)


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def digest(recipe: InputSpec) -> str:
    tensors, _ = build_inputs(PROBLEM, recipe, CPU)
    parts = [
        f"{name} {tuple(value.shape)} {value.stride()} {value.storage_offset()} ".encode()
        + bits(value).numpy().tobytes()
        for name, value in tensors.items()
    ]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def recipes() -> Iterator[InputSpec]:
    for layout, guard in product(LAYOUTS, (None, *FILLS)):
        edits = (Edit(kind="broadcast_rows", input="x"),) if layout == "expanded" else ()
        weight = layout if layout in ("offset", "strided") else "contiguous"
        yield spec(layouts={"x": layout, "weight": weight}, guard=guard, edits=edits)
    yield from (spec(edits=(edit,)) for edit in EDITS)
    yield from (spec(40, 33, source=source, seed=2**48 - 1) for source in SOURCES)
    yield spec(2000, 600, tile_rows=61)


class TestSameBits:
    def test_in_another_process_with_another_number_of_threads(self) -> None:
        theirs = subprocess.run(
            [sys.executable, __file__],
            env=os.environ | {"OMP_NUM_THREADS": "1" if torch.get_num_threads() > 1 else "2"},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout.split()
        wanted = list(recipes())
        assert len(theirs) == len(wanted) > 25
        for recipe, other in zip(wanted, theirs, strict=True):
            assert digest(recipe) == other, recipe.label()

    @pytest.mark.parametrize("source", SOURCES)
    def test_the_seed_alone_decides(self, source: str) -> None:
        torch.manual_seed(1)
        first = draw_values(PROBLEM, spec(40, 33, source=source), CPU)
        torch.manual_seed(2)
        again = draw_values(PROBLEM, spec(40, 33, source=source), CPU)
        assert all(same(first[name], again[name]) for name in first)
        for seed in (12, 11 + 2**16, 11 + 2**31):  # a CPU generator looks at 32 bits
            other = draw_values(PROBLEM, spec(40, 33, source=source, seed=seed), CPU)
            assert not same(first["x"], other["x"])

    def test_the_global_generator_is_left_alone(self) -> None:
        before = torch.get_rng_state()
        build_inputs(PROBLEM, spec(edits=EDITS[:4]), CPU)
        assert torch.equal(before, torch.get_rng_state())


class TestLayouts:
    @pytest.mark.parametrize("rows", [2, 3, 5, 40])
    def test_the_last_of_far_rows_lie_beyond_32_bits(self, rows: int) -> None:
        """The same values in memory of which next to nothing is touched."""
        x = build_inputs(PROBLEM, spec(rows, layouts={"x": "far_rows"}), CPU)[0]["x"]
        assert same(x.contiguous(), build_inputs(PROBLEM, spec(rows), CPU)[0]["x"])
        pitch, step = x.stride()
        assert step == 1
        assert (rows - 1) * pitch >= 1 << 31
        assert rows < 4 or rows // 2 * pitch < 1 << 31

    @pytest.mark.parametrize("guard", [None, *FILLS])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_values_are_those_of_the_contiguous_draw(self, layout: LayoutKind, guard: Fill | None) -> None:
        edits = (Edit(kind="broadcast_rows", input="x"),) if layout == "expanded" else ()
        plain, _ = build_inputs(PROBLEM, spec(edits=edits), CPU)
        laid, guards = build_inputs(PROBLEM, spec(edits=edits, layouts={"x": layout}, guard=guard), CPU)
        assert all(same(laid[name], plain[name]) for name in plain)
        assert len(guards) == (2 if guard else 0)
        assert all(band.intact() for band in guards)

    @pytest.mark.parametrize(
        ("layout", "strides"),
        [
            ("contiguous", (7, 1)),
            ("row_stride", (71, 1)),
            ("odd_row_stride", (10, 1)),
            ("offset", (7, 1)),
            ("transposed", (1, 5)),
            ("expanded", (0, 1)),
            ("strided", (14, 2)),
        ],
    )
    def test_strides_are_as_claimed(self, layout: LayoutKind, strides: tuple[int, ...]) -> None:
        edits = (Edit(kind="broadcast_rows", input="x"),) if layout == "expanded" else ()
        laid, _ = build_inputs(PROBLEM, spec(edits=edits, layouts={"x": layout}), CPU)
        assert laid["x"].stride() == strides

    @pytest.mark.parametrize("guard", [None, *FILLS])
    def test_an_offset_leaves_only_the_alignment_of_an_element(self, guard: Fill | None) -> None:
        laid, _ = build_inputs(PROBLEM, spec(layouts={"x": "offset", "weight": "offset"}, guard=guard), CPU)
        assert all(tensor.data_ptr() % 4 == 2 for tensor in laid.values())

    @pytest.mark.parametrize("guard", FILLS)
    def test_guard_bands_do_not_disturb_the_alignment(self, guard: Fill) -> None:
        laid, _ = build_inputs(PROBLEM, spec(guard=guard), CPU)
        assert all(tensor.data_ptr() % 64 == 0 for tensor in laid.values())

    def test_a_strided_vector(self) -> None:
        laid, _ = build_inputs(PROBLEM, spec(layouts={"weight": "strided"}), CPU)
        assert laid["weight"].stride() == (2,)

    def test_contiguous_copies_for_the_reference(self) -> None:
        laid, _ = build_inputs(PROBLEM, spec(layouts={"x": "transposed", "weight": "strided"}), CPU)
        copies = as_contiguous(laid)
        assert all(copy.is_contiguous() and same(copy, laid[name]) for name, copy in copies.items())

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_three_dimensions(self, layout: LayoutKind) -> None:
        value = torch.arange(2 * 3 * 4, dtype=torch.float32).reshape(2, 3, 4)
        if layout == "expanded":
            value = value[:1].expand(value.shape)
        placed = place("x", value, layout, "nan")
        assert same(placed.tensor, value)
        assert placed.intact()

    @pytest.mark.parametrize(("rows", "hidden"), [(0, 7), (1, 1), (1, 7), (7, 1)])
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_degenerate_shapes(self, layout: LayoutKind, rows: int, hidden: int) -> None:
        edits = (Edit(kind="broadcast_rows", input="x"),) if layout == "expanded" else ()
        plain, _ = build_inputs(PROBLEM, spec(rows, hidden, edits=edits), CPU)
        laid, guards = build_inputs(
            PROBLEM, spec(rows, hidden, edits=edits, layouts={"x": layout}, guard="huge"), CPU
        )
        assert same(laid["x"], plain["x"])
        assert all(band.intact() for band in guards)


class TestGuard:
    @pytest.mark.parametrize("fill", FILLS)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_one_changed_element_anywhere_outside_is_seen(self, layout: LayoutKind, fill: Fill) -> None:
        band = self._guarded(layout, fill)
        inside = set(self._addresses(band.tensor))
        outside = [at for at in range(band.buffer.numel()) if at not in inside]
        first, last = min(inside), max(inside)
        gaps = [at for at in outside if first < at < last]
        assert bool(gaps) == (layout in ("row_stride", "odd_row_stride", "strided"))
        for at in {outside[0], first - 1, last + 1, outside[-1], *gaps[:1], *gaps[-1:]}:
            kept = band.buffer[at].clone()
            for value in (0.0, -1.0, float("inf")):
                band.buffer[at] = value
                assert not band.intact(), f"{layout}: element {at} was changed to {value}"
            band.buffer[at] = kept
        assert band.intact()

    def test_everything_outside_changed_alike_is_seen(self) -> None:
        band = self._guarded("contiguous", "nan")
        inside = band.tensor.clone()
        band.buffer.zero_()
        band.tensor.copy_(inside)
        assert not band.intact()

    @pytest.mark.parametrize("fill", FILLS)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_the_tensor_itself_may_change(self, layout: LayoutKind, fill: Fill) -> None:
        band = self._guarded(layout, fill)
        for at in set(self._addresses(band.tensor)):
            band.buffer[at] = 3.0
        assert band.intact()

    def test_another_nan_is_a_change(self) -> None:
        band = self._guarded("contiguous", "nan")
        bits(band.buffer)[0] ^= 1  # the payload
        assert band.buffer[0].isnan()
        assert not band.intact()

    @pytest.mark.parametrize("rows", [1, 3])
    def test_a_band_is_at_least_a_row_and_64_kib(self, rows: int) -> None:
        wide = place("x", torch.zeros(rows, 100_000, dtype=torch.bfloat16), "contiguous", "nan")
        assert wide.tensor.storage_offset() >= 100_000
        assert wide.buffer.numel() - wide.tensor.storage_offset() - wide.tensor.numel() >= 100_000
        small = self._guarded("contiguous", "nan")
        assert small.tensor.storage_offset() * 2 >= 1 << 16

    @staticmethod
    def _guarded(layout: LayoutKind, fill: Fill) -> Guarded:
        value = torch.ones(1, 6, dtype=torch.bfloat16).expand(4, 6)
        return place("x", value, layout, fill)

    @staticmethod
    def _addresses(tensor: Tensor) -> Iterator[int]:
        for index in product(*(range(extent) for extent in tensor.shape)):
            steps = (i * stride for i, stride in zip(index, tensor.stride(), strict=True))
            yield int(tensor.storage_offset() + sum(steps))


class TestFill:
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
    def test_floats(self, dtype: torch.dtype) -> None:
        assert torch.tensor(fill_value(dtype, "nan"), dtype=dtype).isnan()
        huge = torch.tensor(fill_value(dtype, "huge"), dtype=dtype)
        assert huge.isfinite()
        assert float(huge) == min(2.0**100, torch.finfo(dtype).max)

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
    def test_integers(self, dtype: torch.dtype) -> None:
        largest = torch.iinfo(dtype).max
        assert (fill_value(dtype, "nan"), fill_value(dtype, "huge")) == (largest, largest - 1)


class TestEdits:
    def test_scaling_is_exact(self) -> None:
        value = torch.tensor([1.5, -3.0, 2.0**-120, 0.0, -0.0], dtype=torch.bfloat16)
        edited = apply_edit(value, Edit(kind="scale", input="x", exponent=-5))
        assert same(edited, torch.tensor([v / 32 for v in value.tolist()], dtype=torch.bfloat16))

    def test_rows_are_permuted_taken_and_repeated(self) -> None:
        value = torch.arange(12.0).reshape(4, 3)
        order = permutation(4, 5)
        assert sorted(order.tolist()) == [0, 1, 2, 3]
        assert torch.equal(apply_edit(value, Edit(kind="permute_rows", input="x", seed=5)), value[order])
        taken = apply_edit(value, Edit(kind="take_rows", input="x", at=(2, 2, 0)))
        assert taken[:, 0].tolist() == [6.0, 6.0, 0.0]
        broadcast = apply_edit(value, Edit(kind="broadcast_rows", input="x"))
        assert torch.equal(broadcast, value[:1].expand(4, 3))
        assert repeat_rows(value, 10)[:, 0].tolist() == [0, 3, 6, 9, 0, 3, 6, 9, 0, 3]

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    @pytest.mark.parametrize("name", get_args(SpecialName))
    def test_special_values_are_exact(self, name: SpecialName, dtype: torch.dtype) -> None:
        edit = Edit(kind="place", input="x", at=(3,), values=(name,))
        value = apply_edit(torch.ones(2, 3, dtype=dtype), edit)[1, 0]
        info = torch.finfo(dtype)
        digits = {torch.bfloat16: 7, torch.float16: 10, torch.float32: 23}[dtype]
        plain = name.removeprefix("-")
        assert bool(value.isnan()) == (plain == "nan")
        if plain != "nan":
            exact = {"inf": float("inf"), "0": 0.0, "max": info.max, "one": 1.0}
            exact["subnormal"] = 3 * info.smallest_normal * 2.0**-digits
            assert float(value.abs()) == exact[plain]
            assert bool(value.signbit()) == name.startswith("-")
            assert float(value) == special_value(name, dtype)

    def test_places_change_nothing_else(self) -> None:
        plain = draw_values(PROBLEM, spec(), CPU)
        edited = draw_values(PROBLEM, spec(edits=(EDITS[1],)), CPU)
        changed = (bits(plain["x"]) != bits(edited["x"])).flatten().nonzero().flatten().tolist()
        assert changed == [0, 5, 34]
        assert same(plain["weight"], edited["weight"])


class TestTiles:
    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("start", [0, 60, 61, 500, 1934])
    @pytest.mark.parametrize("turned", [False, True])
    def test_a_window_holds_the_rows_of_the_whole(self, source: str, start: int, turned: bool) -> None:
        tiled = spec(2000, 24, source=source, tile_rows=61, turned=turned)
        whole = draw_values(PROBLEM, tiled, CPU)
        part = draw_values(PROBLEM, window_spec(PROBLEM, tiled, start, 66), CPU)
        assert same(part["x"], whole["x"][start : start + 66])
        assert same(part["weight"], whole["weight"])

    def test_a_window_of_inputs_that_were_drawn_whole(self) -> None:
        whole = draw_values(PROBLEM, spec(50, 8), CPU)
        part = draw_values(PROBLEM, window_spec(PROBLEM, spec(50, 8), 40, 10), CPU)
        assert same(part["x"], whole["x"][40:])

    def test_scaling_goes_through_a_window(self) -> None:
        tiled = spec(500, 8, tile_rows=61, edits=(EDITS[0],))
        whole = draw_values(PROBLEM, tiled, CPU)
        part = draw_values(PROBLEM, window_spec(PROBLEM, tiled, 300, 5), CPU)
        assert same(part["x"], whole["x"][300:305])

    def test_a_block_repeats_and_its_rows_differ(self) -> None:
        x = draw_values(PROBLEM, spec(200, 16, tile_rows=61), CPU)["x"]
        assert same(x[:61], x[61:122])
        assert len({bits(row).numpy().tobytes() for row in x}) == 61

    def test_turned_repetitions_are_equal_in_no_row(self) -> None:
        x = draw_values(PROBLEM, spec(200, 16, tile_rows=61, turned=True), CPU)["x"]
        assert len({bits(row).numpy().tobytes() for row in x}) == 200
        assert same(x[61:122], x[:61].roll(1, -1))

    @pytest.mark.parametrize(("rows", "width"), [(1, 1 << 24), (10**7, 128), (505888, 128), (1 << 19, 4096)])
    def test_large_inputs_get_a_block_that_fits_no_tile_size(self, rows: int, width: int) -> None:
        block = tile_rows_for(rows, width)
        assert block is not None
        assert block <= rows
        assert block == rows or all(block % size for size in (2, 3, 5, 7))
        assert block * width <= 1 << 19 or block in (1, 61)

    def test_small_inputs_are_drawn_whole(self) -> None:
        assert tile_rows_for(1024, 1024) is None
        assert tile_rows_for(0, 1024) is None
        assert tile_rows_for(1025, 1024) is not None

    def test_no_rows(self) -> None:
        values = draw_values(PROBLEM, spec(0, 8, tile_rows=61), CPU)
        assert values["x"].shape == (0, 8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
class TestOnCuda:
    @pytest.mark.parametrize("guard", FILLS)
    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_guards_hold_and_notice(self, layout: LayoutKind, guard: Fill) -> None:
        edits = (Edit(kind="broadcast_rows", input="x"),) if layout == "expanded" else ()
        recipe = spec(edits=edits, layouts={"x": layout}, guard=guard)
        laid, guards = build_inputs(PROBLEM, recipe, torch.device("cuda"))
        plain, _ = build_inputs(PROBLEM, spec(edits=edits), torch.device("cuda"))
        assert same(laid["x"], plain["x"])
        for band in guards:
            assert band.intact()
            band.buffer[-1] = 0.0
            assert not band.intact()

    @pytest.mark.parametrize("source", SOURCES)
    def test_the_seed_decides(self, source: str) -> None:
        recipe = spec(300, 129, source=source)
        first, second = (draw_values(PROBLEM, recipe, torch.device("cuda")) for _ in range(2))
        assert all(same(first[name], second[name]) for name in first)


if __name__ == "__main__":  # the other process of TestSameBits
    print(*(digest(recipe) for recipe in recipes()))


def test_the_bytes_of_a_tensor_whose_extents_of_one_have_other_strides() -> None:
    """Such a tensor is contiguous to PyTorch, and a kernel's empty_like keeps the strides of its input."""
    value = torch.empty_strided((1, 1, 1), (2, 2, 2), dtype=torch.bfloat16).fill_(1.5)
    assert value.is_contiguous()
    assert raw_bytes(value).tolist() == [0xC0, 0x3F]
    part = torch.arange(6, dtype=torch.int32).view(2, 3)[1:]
    assert raw_bytes(part).tolist() == [3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0]


def test_a_guard_stays_where_it_was_put() -> None:
    """A tensor that is pointed elsewhere, as Triton's interpreter does with an empty one, keeps its guard."""
    far = torch.zeros(400, dtype=torch.bfloat16)
    for count in (0, 8):
        guarded = place("x", torch.ones(count, dtype=torch.bfloat16), "contiguous", "nan")
        guarded.tensor.set_(far.untyped_storage(), 300, (40,), (2,))
        assert guarded.intact()
        guarded.buffer[-1] = 0.0
        assert not guarded.intact()
