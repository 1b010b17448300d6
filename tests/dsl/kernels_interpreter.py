"""Kernels under the repaired interpreter, against torch. The process needs TRITON_INTERPRET=1 from its start:

TRITON_INTERPRET=1 pytest tests/dsl/kernels_interpreter.py   (test_interpreter.py runs it so)
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from atrex.dsl import interpreter

interpreter.install()

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
HALVES = [BF16, FP16]
FP8 = [E4M3, E5M2]


def all_values(dtype: torch.dtype) -> Tensor:
    """Every bit pattern of a 16-bit or 8-bit float: NaNs, infinities, subnormals and both zeros."""
    if dtype.itemsize == 2:
        return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(dtype)
    return torch.arange(256).to(torch.uint8).view(dtype)


def near_ties() -> Tensor:
    """Every upper half of an fp32, with lower halves at and around the tie of a cast to bf16."""
    upper = torch.arange(1 << 16, dtype=torch.int64)[:, None] << 16
    lower = torch.tensor([0, 1, 0x1000, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    return (upper | lower).flatten().to(torch.int32).view(FP32)


def assert_same(got: Tensor, want: Tensor) -> None:
    """Equal bits, where every NaN is one value."""
    assert got.dtype == want.dtype
    got, want = got.to(torch.float64), want.to(torch.float64)
    differ = ~((got == want) & (got.signbit() == want.signbit()) | (got.isnan() & want.isnan()))
    index = differ.nonzero()[:4].flatten()
    assert not differ.any(), (
        f"{int(differ.sum())} differ, e.g. {got[differ][:4]} for {want[differ][:4]} {index}"
    )


@triton.jit
def cast(x, y, n, rounding: tl.constexpr, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + o, mask=o < n)
    tl.store(y + o, v.to(y.dtype.element_ty, fp_downcast_rounding=rounding), mask=o < n)


@triton.jit
def binary(x, y, out, n, op: tl.constexpr, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    m = o < n
    a = tl.load(x + o, mask=m)
    b = tl.load(y + o, mask=m)
    if op == "add":
        r = a + b
    elif op == "sub":
        r = a - b
    elif op == "mul":
        r = a * b
    elif op == "div":
        r = a / b
    elif op == "maximum":
        r = tl.maximum(a, b)
    elif op == "minimum":
        r = tl.minimum(a, b)
    elif op == "where":
        r = tl.where(a > b, a, b)
    elif op == "scalars":
        r = (a * 2.0 + 1.5) - 0.3 * b
    elif op == "neg_abs":
        r = -tl.abs(a)
    tl.store(out + o, r, mask=m)


def call_cast(x: Tensor, dtype: torch.dtype, rounding: str | None = None) -> Tensor:
    y = torch.empty(x.shape, dtype=dtype)
    cast[(triton.cdiv(x.numel(), 1 << 15),)](x, y, x.numel(), rounding, B=1 << 15)
    return y


def call_binary(op: str, x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    binary[(triton.cdiv(x.numel(), 1 << 14),)](x, y, out, x.numel(), op, B=1 << 14)
    return out


def to_fp8(x: Tensor, dtype: torch.dtype) -> Tensor:
    """torch's cast to fp8, saturating as PTX `cvt.rn.satfinite` does: an infinity too becomes the maximum."""
    most = torch.finfo(dtype).max
    return x.to(FP32).clamp(-most, most).to(dtype)


@pytest.mark.parametrize("target", [FP32, FP16, torch.float64, BF16], ids=str)
@pytest.mark.parametrize("source", [*HALVES, *FP8], ids=str)
def test_cast_of_every_value(source: torch.dtype, target: torch.dtype) -> None:
    x = all_values(source)
    assert_same(call_cast(x, target), x.to(target))


@pytest.mark.parametrize("target", FP8, ids=str)
@pytest.mark.parametrize("source", [*HALVES, *FP8], ids=str)
def test_cast_of_every_value_to_fp8(source: torch.dtype, target: torch.dtype) -> None:
    x = all_values(source)
    assert_same(call_cast(x, target), x if source == target else to_fp8(x, target))


@pytest.mark.parametrize("target", [*HALVES, *FP8], ids=str)
def test_fp32_rounds_to_nearest_even(target: torch.dtype) -> None:
    x = near_ties()
    assert_same(call_cast(x, target), to_fp8(x, target) if target in FP8 else x.to(target))


@pytest.mark.parametrize("target", HALVES, ids=str)
def test_fp32_rounds_towards_zero(target: torch.dtype) -> None:
    x = near_ties()
    x = x[x.isfinite()]
    got = call_cast(x, target, "rtz")
    assert (got.to(FP32).abs() <= x.abs()).all()
    assert (got.signbit() == x.signbit()).all()
    further = (got.view(torch.int16) + 1).view(target).to(FP32).abs()
    assert (further > x.abs()).all()


def test_bf16_to_and_from_integers() -> None:
    x = torch.arange(-70_000, 70_000, 7, dtype=torch.int32)
    assert_same(call_cast(x, BF16), x.to(BF16))
    small = all_values(BF16)
    small = small[small.abs() < 2**31]
    assert torch.equal(call_cast(small, torch.int32), small.to(torch.int32))


def number_wins(choose: Any, x: Tensor, y: Tensor) -> Tensor:
    """Triton's default: a NaN loses to a number. (torch.fmax instead keeps a signalling NaN.)"""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, choose(x, y)))


OPERATIONS: dict[str, Any] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": partial(number_wins, torch.maximum),
    "minimum": partial(number_wins, torch.minimum),
    "where": lambda x, y: torch.where(x > y, x, y),
    "scalars": lambda x, y: (x * 2.0 + 1.5) - torch.tensor(0.3, dtype=x.dtype) * y,
    "neg_abs": lambda x, _: -x.abs() if triton.__version__ >= "3.8" else 0 - x.abs(),  # as Triton defines -x
}


@pytest.mark.parametrize("dtype", [*HALVES, FP32], ids=str)
@pytest.mark.parametrize("op", OPERATIONS)
def test_arithmetic_rounds_every_operation(op: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(1)
    bits = torch.randint(-(1 << 31), 1 << 31, (2, 1 << 16), dtype=torch.int32, generator=draw)
    x, y = bits.view(FP32) if dtype == FP32 else bits.to(torch.int16).view(dtype)
    near = torch.randn(2, 1 << 16, generator=draw).to(dtype)
    x, y = torch.cat([x, near[0]]), torch.cat([y, near[1]])
    if op in ("maximum", "minimum"):  # which zero wins is nobody's promise
        x, y = x.masked_fill(x == 0, 1), y.masked_fill(y == 0, 2)
    assert_same(call_binary(op, x, y), OPERATIONS[op](x, y))


@triton.jit
def reduce(x, out, index, op: tl.constexpr, axis: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    v = tl.load(x + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    o = tl.arange(0, R) if axis == 1 else tl.arange(0, C)
    if op == "sum":
        tl.store(out + o, tl.sum(v, axis=axis))
    elif op == "sum_fp32":
        tl.store(out + o, tl.sum(v.to(tl.float32), axis=axis))
    elif op == "max":
        tl.store(out + o, tl.max(v, axis=axis))
        tl.store(index + o, tl.argmax(v, axis=axis))
    elif op == "min":
        tl.store(out + o, tl.min(v, axis=axis))
        tl.store(index + o, tl.argmin(v, axis=axis))
    elif op == "cumsum":
        tl.store(out + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :], tl.cumsum(v, axis=axis))


def call_reduce(op: str, axis: int, x: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
    index = torch.empty(x.shape[1 - axis], dtype=torch.int32)
    reduce[(1,)](x, out, index, op, axis, *x.shape)
    return out, index


def tree_sum(x: Tensor, axis: int) -> Tensor:
    x = x.movedim(axis, -1)
    while x.shape[-1] > 1:
        first, second = x.chunk(2, dim=-1)
        x = first + second
    return x[..., 0]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", [*HALVES, FP32], ids=str)
def test_reductions(dtype: torch.dtype, axis: int) -> None:
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(2)).to(dtype)
    narrow = x.new_empty(x.shape[1 - axis])
    got, index = call_reduce("max", axis, x, narrow)
    assert_same(got, x.amax(axis))
    assert torch.equal(x.gather(axis, index.long().unsqueeze(axis)).squeeze(axis), got)
    got, index = call_reduce("min", axis, x, narrow)
    assert_same(got, x.amin(axis))
    assert torch.equal(x.gather(axis, index.long().unsqueeze(axis)).squeeze(axis), got)
    wide, _ = call_reduce("sum_fp32", axis, x, narrow.to(FP32))
    assert torch.allclose(wide.double(), x.double().sum(axis), rtol=0, atol=1e-5)
    scan, _ = call_reduce("cumsum", axis, x, torch.empty(x.shape))
    if dtype == FP32 or (dtype == BF16 and triton.__version__ < "3.9"):  # which scans bf16 in fp32
        assert torch.allclose(scan.double(), x.double().cumsum(axis), rtol=0, atol=1e-4)
    else:
        steps = list(itertools.accumulate(x.unbind(axis)))  # in x's dtype, rounded every time
        assert_same(scan, torch.stack(steps, axis).float())


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_sum_in_16_bits_rounds_every_addition(dtype: torch.dtype, axis: int) -> None:
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(3)).to(dtype)
    got, _ = call_reduce("sum", axis, x, x.new_empty(x.shape[1 - axis]))
    assert_same(got, tree_sum(x, axis))
    ones, _ = call_reduce("sum", axis, torch.ones(64, 128, dtype=dtype), x.new_empty(x.shape[1 - axis]))
    assert (ones == x.shape[axis]).all()
    assert not torch.equal(got, x.float().sum(axis).to(dtype))  # fp32 would have kept more


@triton.jit
def shapes_of_sums(x, out, R: tl.constexpr, C: tl.constexpr):
    v = tl.load(x + tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :])
    tl.store(out, tl.sum(v))
    rows = tl.sum(v, axis=1, keep_dims=True)
    tl.static_assert(rows.shape[0] == R)
    tl.static_assert(rows.shape[1] == 1)
    columns = tl.sum(v - rows, axis=0, keep_dims=True)
    tl.store(out + 1 + tl.arange(0, C)[None, :], columns)
    tl.store(out + 1 + C, tl.sum(tl.sum(v, axis=0), axis=0))


def test_shapes_of_sums() -> None:
    x = torch.arange(32.0).reshape(4, 8).to(BF16)
    out = torch.zeros(10, dtype=BF16)
    shapes_of_sums[(1,)](x, out, 4, 8)
    assert out[0] == out[9] == 496
    assert_same(out[1:9], tree_sum(x - x.sum(1, keepdim=True), 0))


@triton.jit
def larger_magnitude(a, b):
    return tl.where(tl.abs(a) > tl.abs(b), a, b)


@triton.jit
def own_combination(x, out, scan, B: tl.constexpr):
    v = tl.load(x + tl.arange(0, B))
    tl.store(out, tl.reduce(v, 0, larger_magnitude))
    tl.store(scan + tl.arange(0, B), tl.associative_scan(v, 0, larger_magnitude))


def test_own_combination_in_bf16() -> None:
    x = torch.tensor([1.0, -3.0, 2.0, -0.5]).to(BF16)
    out, scan = x.new_empty(1), torch.empty_like(x)
    own_combination[(1,)](x, out, scan, 4)
    assert out.tolist() == [-3.0]
    assert scan.tolist() == [1.0, -3.0, -3.0, -3.0]


@triton.jit
def functions(x, out, n: tl.constexpr):
    o = tl.arange(0, n)
    v = tl.load(x + o).to(tl.float32)
    tl.store(out + o, tl.rsqrt(v))
    tl.store(out + n + o, tl.exp(v))
    tl.store(out + 2 * n + o, tl.log(v))
    tl.store(out + 3 * n + o, tl.sigmoid(v))
    tl.store(out + 4 * n + o, tl.erf(v))
    tl.store(out + 5 * n + o, tl.sqrt(v))


def test_functions_of_bf16() -> None:
    x = torch.linspace(0.01, 9, 1024).to(BF16)
    got = torch.empty(6, 1024)
    functions[(1,)](x, got, 1024)
    v = x.double()
    want = torch.stack([v.rsqrt(), v.exp(), v.log(), v.sigmoid(), v.erf(), v.sqrt()])
    assert torch.allclose(got.double(), want, rtol=3e-7, atol=1e-7)


@triton.jit
def dot(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i = tl.arange(0, M)[:, None]
    j = tl.arange(0, N)[None, :]
    k = tl.arange(0, K)
    acc = tl.full((M, N), 1.0, tl.float32)
    acc = tl.dot(tl.load(a + i * K + k[None, :]), tl.load(b + k[:, None] * N + j), acc)
    tl.store(c + i * N + j, acc)


@pytest.mark.parametrize("dtype", [*HALVES, FP32, *FP8], ids=str)
def test_dot_accumulates_in_fp32(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(4)
    a, b = (torch.randn(shape, generator=draw).to(dtype) for shape in [(32, 128), (128, 16)])
    c = torch.empty(32, 16)
    dot[(1,)](a, b, c, 32, 16, 128)
    assert torch.allclose(c.double(), a.double() @ b.double() + 1, rtol=0, atol=2e-5)
    integers = torch.randint(-8, 9, (32, 128), generator=draw).to(dtype)
    dot[(1,)](integers, integers.T.contiguous()[:, :16].contiguous(), c, 32, 16, 128)
    assert torch.equal(c, integers.float() @ integers[:16].float().T + 1)


@triton.jit
def constants(out, scale, B: tl.constexpr):
    full = tl.full([B], 1.5, tl.bfloat16)
    tl.store(out + tl.arange(0, B), full + tl.zeros([B], tl.bfloat16))
    tl.store(out + B + tl.arange(0, B), full * scale)


@pytest.mark.parametrize("scale", [3, 0.3])
def test_constants_and_scalar_arguments(scale: float) -> None:
    out = torch.zeros(32, dtype=BF16)
    constants[(1,)](out, scale, 16)
    assert (out[:16] == 1.5).all()
    assert_same(out[16:], torch.full((16,), 1.5).to(BF16) * torch.tensor(scale, dtype=BF16))


@triton.jit
def shift(x, out, n, stride, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    o = tl.arange(0, B)
    v = tl.load(x + row * stride + o, mask=o < n, other=-2.5)
    tl.store(out + row * B + o, v)


def test_masks_other_strides_and_storage_offset() -> None:
    storage = torch.randn(8, 40).to(BF16)
    x, out = storage[1:, 3:23], torch.empty(7, 32, dtype=BF16)
    shift[(7,)](x, out, 20, x.stride(0), 32)
    assert torch.equal(out[:, :20], x)
    assert (out[:, 20:] == -2.5).all()


def test_offsets_beyond_31_bits() -> None:
    x = torch.empty((2, 1 << 31), dtype=BF16)  # untouched pages take no memory
    x[:, :16] = torch.arange(32.0).reshape(2, 16)
    out = torch.empty(2, 16, dtype=BF16)
    with interpreter.address_check() as violations:
        shift[(2,)](x, out, 16, x.stride(0), 16)
    assert torch.equal(out, x[:, :16])
    assert not violations


@triton.jit
def count(total, old, x, B: tl.constexpr):
    o = tl.arange(0, B)
    before = tl.atomic_add(total + o % 4, tl.load(x + o), mask=o != 5)
    tl.store(old + o, before)


@pytest.mark.parametrize("dtype", [*HALVES, FP32], ids=str)
def test_atomic_add_on_shared_addresses(dtype: torch.dtype) -> None:
    x = torch.randn(32).to(dtype)
    total, old = torch.zeros(4, dtype=dtype), torch.empty(32, dtype=dtype)
    count[(1,)](total, old, x, 32)
    want, before = torch.zeros(4, dtype=dtype), torch.zeros(32, dtype=dtype)
    for lane in range(32):
        if lane != 5:
            before[lane] = want[lane % 4]
            want[lane % 4] += x[lane]
    assert_same(total, want)
    lanes = torch.arange(32) != 5
    assert_same(old[lanes], before[lanes])
