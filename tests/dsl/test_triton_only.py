"""What the interpreter may run: Triton, and nothing that only a CPU's Python could."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from atrex.dsl.triton_only import CompilationError, require_arguments, require_triton

tl: Any = pytest.importorskip("triton.language")
WIDTH = 128
SIZES = (16, 32)
SCALE = tl.constexpr(2.0)


def honest(out, x, n, BLOCK: tl.constexpr, ACTIVATION: tl.constexpr = "silu"):  # type: ignore[no-untyped-def]
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, other=0.0).to(tl.float32) * SCALE * math.pi
    for i in range(len(SIZES)):
        value += i * WIDTH
    if ACTIVATION == "silu":
        value = value / (1.0 + tl.exp(-value))
    assert value.dtype == tl.float32
    tl.store(out + at, tl.extra.cuda.libdevice.round(value), at < n)


def helper(x: Any) -> Any:
    return x


def calls_python(x):  # type: ignore[no-untyped-def]
    helper(x)


def calls_numpy(x):  # type: ignore[no-untyped-def]
    np.exp(x)


def reaches_inside(x):  # type: ignore[no-untyped-def]
    x.handle[:] = 0


def reaches_through_triton(x):  # type: ignore[no-untyped-def]
    tl.core.builtins.eval("x")


def imports(x):  # type: ignore[no-untyped-def]
    import ctypes

    ctypes.memset(x, 0, 1)


def evaluates(x):  # type: ignore[no-untyped-def]
    eval("x")


def private(x):  # type: ignore[no-untyped-def]
    x.__class__()


def test_triton_is_let_through() -> None:
    require_triton(honest)
    require_arguments(honest, {"x": 3, "dtype": tl.float32, "BLOCK": tl.constexpr(4), "shape": (1, 2)})


@pytest.mark.parametrize(
    ("function", "what"),
    [
        (calls_python, "helper, function helper"),
        (calls_numpy, "np.exp"),
        (reaches_inside, ".handle"),
        (reaches_through_triton, "tl.core.builtins"),
        (imports, "import (line"),
        (evaluates, "eval, builtin_function_or_method eval"),
        (private, ".__class__"),
    ],
)
def test_other_code_is_not(function: Callable[..., Any], what: str) -> None:
    with pytest.raises(CompilationError, match="is no Triton kernel: it uses") as raised:
        require_triton(function)
    assert what in str(raised.value)


@pytest.mark.parametrize("value", [helper, np, (1, np.exp)])
def test_nor_as_an_argument(value: object) -> None:
    with pytest.raises(CompilationError, match="is no Triton kernel: F is"):
        require_arguments(honest, {"x": 1, "F": value})


def test_code_without_source() -> None:
    made: dict[str, Any] = {}
    exec("def made(x):\n    return x", made)
    with pytest.raises(CompilationError, match="source that cannot be read"):
        require_triton(made["made"])
