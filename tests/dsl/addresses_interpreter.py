"""The address check and the launch record. Runs like kernels_interpreter.py."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from atrex.dsl import interpreter
from atrex.dsl.addresses import MOST_VIOLATIONS, Violation

interpreter.install()


@triton.jit
def copy(x, y, n, start, B: tl.constexpr):
    o = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + start + o, mask=o < n), mask=o < n)


def padded(n: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A storage of sevens, and a view of n ones in the middle of it."""
    storage = torch.full((n + 64,), 7.0, dtype=dtype)
    view = storage[32 : 32 + n]
    view.fill_(1)
    return storage, view


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=str)
def test_a_masked_kernel_is_clean(dtype: torch.dtype) -> None:
    (_, x), (outer, y) = padded(100, dtype), padded(100, dtype)
    with interpreter.address_check() as violations:
        copy[(2,)](x, y, 100, 0, B=64)
    assert not violations
    assert violations.total == 0
    assert (outer.float()[[31, 132]] == 7).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_reading_one_element_past_the_end(dtype: torch.dtype) -> None:
    (_, x), (_, y) = padded(100, dtype), padded(101, dtype)
    with interpreter.address_check() as violations:
        copy[(2,)](x, y, 101, 0, B=64)
    assert y.tolist() == [1.0] * 100 + [0.0]  # not the seven that lies there
    size = dtype.itemsize
    assert violations == [
        Violation(
            kernel="copy",
            kind="load",
            address=x.data_ptr() + 100 * size,
            nearest=f"x + {100 * size} bytes, reaching {size} bytes past its end",
            program=(1, 0, 0),
        )
    ]
    assert str(violations[0]).startswith("copy, program (1, 0, 0): load at 0x")


def test_reading_before_the_start() -> None:
    (_, x), (_, y) = padded(64, torch.bfloat16), padded(64, torch.bfloat16)
    with interpreter.address_check() as violations:
        copy[(1,)](x, y, 64, -1, B=64)
    assert [v.nearest for v in violations] == ["x - 2 bytes, 2 bytes before its start"]


def test_writing_past_the_end_is_dropped() -> None:
    (_, x), (outer, y) = padded(64, torch.bfloat16), padded(62, torch.bfloat16)
    with interpreter.address_check() as violations:
        copy[(1,)](x, y, 64, 0, B=64)
    assert [(v.kind, v.address - y.data_ptr()) for v in violations] == [("store", 124), ("store", 126)]
    assert (y == 1).all()
    assert (outer[94:] == 7).all()


def test_a_wild_address_does_not_end_the_process() -> None:
    (_, x), (_, y) = padded(256, torch.bfloat16), padded(256, torch.bfloat16)
    with interpreter.address_check() as violations:
        copy[(2,)](x, y, 256, 1 << 44, B=128)
    assert violations.total == 256
    assert len(violations) == MOST_VIOLATIONS
    assert (y == 0).all()


def test_another_tensor_of_the_process_is_outside() -> None:
    x, y, other = (torch.ones(64) for _ in range(3))
    elsewhere = (other.data_ptr() - x.data_ptr()) // 4
    with interpreter.address_check() as violations:
        copy[(1,)](x, y, 64, elsewhere, B=64)
    assert violations.total == 64


def test_the_extent_is_the_views_from_first_to_last_element() -> None:
    x = torch.ones(4, 16)[:, :8]  # 56 floats from first to last
    with interpreter.address_check() as violations:
        copy[(1,)](x, torch.empty(64), 64, 0, B=64)
    assert violations.total == 8
    assert violations[0].address == x.data_ptr() + 56 * 4


def test_an_empty_tensor_has_no_inside() -> None:
    with interpreter.address_check() as violations:
        copy[(1,)](torch.empty(0), torch.empty(16), 1, 0, B=16)
    assert violations.total == 1


def test_nothing_is_checked_outside_the_context_and_nesting_restores() -> None:
    (_, x), (_, y) = padded(64, torch.float32), padded(65, torch.float32)
    with interpreter.address_check() as outer:
        with interpreter.address_check() as inner:
            copy[(1,)](x, y, 65, 0, B=128)
        copy[(1,)](x, y, 64, 0, B=64)
    assert (inner.total, outer.total) == (1, 0)
    copy[(1,)](x, y, 65, 0, B=128)
    assert y[64] == 7


@triton.jit
def add_all(x, old, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(old + o, tl.atomic_add(x + o, 1.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_atomics_are_checked(dtype: torch.dtype) -> None:
    (outer, x), (_, old) = padded(15, dtype), padded(16, dtype)
    with interpreter.address_check() as violations:
        add_all[(1,)](x, old, 16)
    assert [(v.kind, v.address) for v in violations] == [("atomic", x.data_ptr() + 15 * dtype.itemsize)]
    assert (x == 2).all()
    assert (outer[47:] == 7).all()
    assert (old[:15] == 1).all()


@triton.jit
def swap_one(lock, old, offset):
    tl.store(old, tl.atomic_cas(lock + offset, 5, 9))


def test_compare_and_swap_is_checked() -> None:
    storage = torch.tensor([5, 5, 5], dtype=torch.int32)
    old = torch.zeros(1, dtype=torch.int32)
    with interpreter.address_check() as violations:
        swap_one[(1,)](storage[:1], old, 0)
        assert (violations.total, old.item()) == (0, 5)
        swap_one[(1,)](storage[:1], old, 1)
    assert (violations.total, old.item()) == (1, 0)
    assert storage.tolist() == [9, 5, 5]


@triton.jit
def described(x, y, rows, columns, B: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, columns], [columns, 1], [B, B])
    target = tl.make_tensor_descriptor(y, [rows, columns], [columns, 1], [B, B])
    target.store([0, 0], source.load([0, 0]) + 1)


@triton.jit
def block_pointed(x, y, rows, columns, B: tl.constexpr):
    source = tl.make_block_ptr(x, (rows, columns), (columns, 1), (0, 0), (B, B), (1, 0))
    target = tl.make_block_ptr(y, (rows, columns), (columns, 1), (0, 0), (B, B), (1, 0))
    value = tl.load(source, boundary_check=(0, 1), padding_option="nan")
    tl.store(target, value + 1, boundary_check=(0, 1))


@pytest.mark.parametrize("kernel", [described, block_pointed], ids=["descriptor", "block pointer"])
def test_block_accesses_are_checked(kernel: triton.JITFunction) -> None:
    if kernel is block_pointed and triton.__version__ >= "3.9":
        pytest.skip("triton 3.9 has no block pointers")
    x, y = torch.randn(10, 16).to(torch.bfloat16), torch.zeros(10, 16, dtype=torch.bfloat16)
    with interpreter.address_check() as violations:
        kernel[(1,)](x, y, 10, 16, 16)
        assert not violations
        assert torch.equal(y, x + 1)
        kernel[(1,)](x, y, 11, 16, 16)
    assert {v.kind for v in violations} == {"load", "store"}
    assert violations.total == 32


@triton.jit
def through_host_descriptor(source, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o[:, None] * B + o[None, :], source.load([0, 0]))


def test_a_host_descriptor_brings_its_tensor() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    x, y = torch.randn(16, 16).to(torch.bfloat16), torch.zeros(16, 16, dtype=torch.bfloat16)
    with interpreter.address_check() as violations:
        through_host_descriptor[(1,)](TensorDescriptor.from_tensor(x, [16, 16]), y, 16)
    assert not violations
    assert torch.equal(x, y)


@triton.jit
def second_of(pair, y, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(y + o, tl.load(pair[1] + o))


def test_tensors_in_a_tuple_and_under_another_dtype() -> None:
    x, y = torch.arange(16, dtype=torch.int16), torch.zeros(16, dtype=torch.bfloat16)
    with interpreter.address_check() as violations:
        second_of[(1,)]((y, triton.reinterpret(x, tl.bfloat16)), y, 16)
        assert not violations
        second_of[(1,)]((y, triton.reinterpret(x, tl.bfloat16)), y, 32)
    assert torch.equal(y.view(torch.int16), x)
    assert violations[0].nearest == "pair[1] + 32 bytes, reaching 2 bytes past its end"


@triton.autotune(configs=[triton.Config({"B": 32}), triton.Config({"B": 64})], key=["n"])
@triton.heuristics({"start": lambda args: args["n"] - args["n"]})
@triton.jit
def tuned(x, y, n, start, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + o, tl.load(x + start + o, mask=o < n), mask=o < n)


def test_autotune_and_heuristics_and_the_launch_record() -> None:
    x, y = torch.randn(100).to(torch.bfloat16), torch.empty(100, dtype=torch.bfloat16)
    with interpreter.launches() as outer, interpreter.address_check() as violations:
        tuned[lambda meta: (triton.cdiv(100, meta["B"]),)](x, y, 100)
        with interpreter.launches() as inner:
            copy[(2,)](x, y, 100, 0, B=64)
    copy[(2,)](x, y, 100, 0, B=64)
    assert (outer, inner) == (["tuned", "copy"], ["copy"])
    assert not violations
    assert torch.equal(x, y)
