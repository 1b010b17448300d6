"""The C++ rms_norm kernels of the knowledge base: every configuration, layout, value and instruction set."""

from __future__ import annotations

import itertools
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from atrex.dsl import cpp

ROOT = Path(__file__).parents[2]
KERNEL = ROOT / "knowledge" / "kernels" / "cpp" / "rms_norm" / "vector_rows.py"
TUNABLES: dict[str, list[Any]] = yaml.safe_load(KERNEL.read_text().split("---\n")[1])["tunables"]
CONFIGURATIONS = [dict(zip(TUNABLES, v, strict=True)) for v in itertools.product(*TUNABLES.values())]
EPS = 1e-6

SHAPES = [
    *((0, 128), (1, 1), (3, 1), (1, 5120), (7, 31), (7, 32), (7, 33), (13, 257), (67, 1152), (130, 1283)),
    *((2, 4096), (3, 4097), (5, 8191), (2, 65536), (65537, 3), (4099, 128)),
]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATREX_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield load()


def load() -> ModuleType:
    module = ModuleType(KERNEL.stem)
    exec(compile(KERNEL.read_text(), str(KERNEL), "exec"), module.__dict__)
    return module


def configure(module: ModuleType, configuration: dict[str, Any]) -> None:
    module.__dict__["DISPATCH"] = [({}, configuration)]
    module._plan.cache_clear()


@pytest.fixture
def configured(kernel: ModuleType) -> Iterator[ModuleType]:
    """The kernel, whose table a test may replace."""
    shipped = kernel.DISPATCH
    yield kernel
    kernel.__dict__["DISPATCH"] = shipped
    kernel._plan.cache_clear()


def inputs(token_count: int, hidden_size: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(token_count * 65537 + hidden_size)
    x = torch.randn(token_count, hidden_size, generator=generator).bfloat16()
    return x, (1 + 0.1 * torch.randn(hidden_size, generator=generator)).bfloat16()


def eager(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + eps) * weight.float()).bfloat16()


def bits(value: Tensor) -> Tensor:
    """The bit patterns, with one pattern for every NaN."""
    return torch.where(value.isnan(), torch.tensor(torch.nan, dtype=value.dtype), value).view(torch.int16)


def assert_near_oracle(out: Tensor, x: Tensor, weight: Tensor) -> None:
    """Within half a bf16 ulp of the fp64 result, plus 2^-15 of it for the fp32 arithmetic before."""
    xd = x.double()
    expected = xd * torch.rsqrt(xd.square().mean(-1, keepdim=True) + EPS) * weight.double()
    _, exponent = torch.frexp(expected)
    half_ulp = torch.ldexp(torch.ones_like(expected), exponent - 9)
    assert ((out.double() - expected).abs() <= half_ulp + expected.abs() * 2**-15).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shipped_table_is_near_the_oracle(kernel: ModuleType, shape: tuple[int, int]) -> None:
    x, weight = inputs(*shape)
    out = kernel.Model(EPS)(x, weight)
    assert (out.shape, out.dtype, out.is_contiguous()) == (x.shape, torch.bfloat16, True)
    assert_near_oracle(out, x, weight)


def test_table_gives_every_tunable_a_declared_value(kernel: ModuleType) -> None:
    for _, configuration in kernel.DISPATCH:
        assert configuration in CONFIGURATIONS
    assert kernel.DISPATCH[-1][0] == {}


@pytest.mark.parametrize("shape", [(0, 64), (1, 1), (5, 33), (67, 64), (130, 1152), (3, 4129)], ids=str)
def test_every_configuration_gives_the_same_bits(configured: ModuleType, shape: tuple[int, int]) -> None:
    x, weight = inputs(*shape)
    expected = configured.Model(EPS)(x, weight)
    for configuration in CONFIGURATIONS:
        configure(configured, configuration)
        assert torch.equal(configured.Model(EPS)(x, weight), expected), configuration


def test_large_output_gives_the_same_bits_streamed_on_huge_pages(configured: ModuleType) -> None:
    x, weight = inputs(9001, 1152)
    rest = {"split": "dynamic", "prefetch": 2, "rows": 4}
    configure(configured, {**rest, "stream": 0, "huge_pages": 0})
    plain = configured.Model(EPS)(x, weight)
    configure(configured, {**rest, "stream": 1, "huge_pages": 1})
    assert torch.equal(configured.Model(EPS)(x, weight), plain)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_thread_count_does_not_change_bits(kernel: ModuleType, threads: int) -> None:
    x, weight = inputs(1003, 257)
    expected, before = kernel.Model(EPS)(x, weight), torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        assert torch.equal(kernel.Model(EPS)(x, weight), expected)
    finally:
        torch.set_num_threads(before)


def test_undeclared_configuration_is_refused(configured: ModuleType) -> None:
    configure(configured, CONFIGURATIONS[0] | {"rows": 3})
    with pytest.raises(ValueError, match="no kernel for the configuration"):
        configured.Model(EPS)(*inputs(3, 32))


@pytest.mark.parametrize("shape", [(37, 1152), (37, 257), (1, 64), (300, 1)], ids=str)
def test_layouts_give_the_bits_of_contiguous_inputs(kernel: ModuleType, shape: tuple[int, int]) -> None:
    (token_count, hidden_size), (x, weight), model = shape, inputs(*shape), kernel.Model(EPS)
    expected = model(x, weight)

    wide = torch.full((token_count, hidden_size + 7), torch.nan, dtype=torch.bfloat16)
    for offset in range(8):  # 2-byte alignment, odd row stride
        rows = wide[:, offset : offset + hidden_size]
        rows.copy_(x)
        assert torch.equal(model(rows, weight), expected)
        wide.fill_(torch.nan)

    every_third = torch.full((hidden_size, 3), torch.nan, dtype=torch.bfloat16)
    every_third[:, 1] = weight
    assert torch.equal(model(x, every_third[:, 1]), expected)

    assert torch.equal(model(x.t().contiguous().t(), weight), expected)
    row = x[:1].expand(token_count, hidden_size)
    assert torch.equal(model(row, weight), model(row.contiguous(), weight))
    column = x[:, :1].expand(token_count, hidden_size)
    result = model(column, weight)
    assert torch.equal(result, model(column.contiguous(), weight))
    assert result.is_contiguous()
    one_gain = weight[:1].expand(hidden_size)
    assert torch.equal(model(x, one_gain), model(x, one_gain.contiguous()))


@pytest.mark.parametrize("eps", [0.0, 1e-6])
@pytest.mark.parametrize("column", [0, 1, 32, 68], ids=lambda c: f"column{c}")
def test_every_bf16_value_is_treated_as_in_eager(kernel: ModuleType, eps: float, column: int) -> None:
    """One element a row is not zero, so the sum is exact in any order and the bits must be those of eager."""
    x = torch.zeros(1 << 16, 69, dtype=torch.bfloat16)  # two whole vectors and a tail
    x[:, column] = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16)
    weight = inputs(1, 69)[1] * torch.tensor([1, -3, 1e-30], dtype=torch.bfloat16).repeat(23)
    assert torch.equal(bits(kernel.Model(eps)(x, weight)), bits(eager(x, weight, eps)))


@pytest.mark.parametrize("step", [29, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("column", [0, 31, 32, 68])
def test_every_bf16_gain_is_treated_as_in_eager(kernel: ModuleType, column: int, step: int) -> None:
    x = torch.full((1, 69), 1.5, dtype=torch.bfloat16)
    model, weight = kernel.Model(EPS), torch.ones(69, dtype=torch.bfloat16)
    for gain in torch.arange(-(1 << 15), 1 << 15, step, dtype=torch.int16).view(torch.bfloat16):
        weight[column] = gain
        assert torch.equal(bits(model(x, weight)), bits(eager(x, weight, EPS)))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
@pytest.mark.parametrize(
    "flag",
    [
        *(pytest.param(f, marks=pytest.mark.slow) for f in ("-mno-avx512bf16", "-march=haswell")),
        "-march=x86-64",
    ],
)
def test_older_instruction_sets_give_the_same_bits(
    kernel: ModuleType, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATREX_CACHE_DIR", str(tmp_path))
    older = load()
    functions = {"rms_norm": [cpp.pointer, cpp.pointer, cpp.pointer, cpp.f32, cpp.pointer]}
    older.__dict__["_rms_norm"] = cpp.compile(older.SOURCE, functions, [flag, "-Wno-psabi"]).rms_norm
    any_bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int16).view(torch.bfloat16).view(-1, 128)
    for x, weight in (inputs(67, 1152), inputs(13, 4129), (any_bits, inputs(1, 128)[1])):
        assert torch.equal(bits(older.Model(EPS)(x, weight)), bits(kernel.Model(EPS)(x, weight)))


def test_unsupported_inputs_are_refused_clearly(kernel: ModuleType) -> None:
    (x, weight), model = inputs(3, 32), kernel.Model(EPS)
    with pytest.raises(TypeError, match=r"want bf16 on the CPU, got torch\.float32"):
        model(x.float(), weight)
    with pytest.raises(ValueError, match=r"got \(3, 32\) and \(31,\)"):
        model(x, weight[:31])
    with pytest.raises(ValueError, match=r"got \(1, 3, 32\)"):
        model(x[None], weight)


PAGES = f"""
import ctypes, itertools, mmap, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import torch
from test_cpp_rms_norm import CONFIGURATIONS, EPS, configure, inputs, load

def between_guards(value, at_end):
    # The tensor's bytes end, or begin, at a page that may not be touched.
    count = value.numel()
    size = -(-2 * count // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, size + 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    offset = mmap.PAGESIZE + (size - 2 * count if at_end else 0)
    guarded = torch.frombuffer(memory, dtype=torch.bfloat16, count=count, offset=offset)
    guarded.copy_(value.flatten())
    libc = ctypes.CDLL(None, use_errno=True)
    for page in (start, start + mmap.PAGESIZE + size):
        assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    return guarded.view(value.shape)

module = load()
for shape in ((1, 1), (9, 33), (6, 64), (11, 1155)):
    x, weight = inputs(*shape)
    expected = module.Model(EPS)(x, weight)
    for at_end in (False, True):
        guarded = between_guards(x, at_end), between_guards(weight, at_end)
        for configuration in CONFIGURATIONS:
            configure(module, configuration)
            assert torch.equal(module.Model(EPS)(*guarded), expected)
print("no guard page was touched")
"""


def test_reads_stay_inside_the_inputs_to_the_byte() -> None:
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "no guard page was touched\n"), done.stderr
