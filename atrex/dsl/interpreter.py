"""Triton's CPU interpreter, made right for bf16 and fp8, with every address checked on request.

    interpreter.install()
    with interpreter.address_check() as violations, interpreter.launches() as kernels:
        model(x, weight)

Triton (3.6 to 3.9) keeps bf16 and fp8 values as raw integers in NumPy and computes on the bits, so bf16
sums, products, comparisons and dots are silently wrong, and its own conversions break ties upwards, lose a
carry into the exponent and turn an fp8 NaN into a number. `install` gives those values their ml_dtypes type,
whose operations compute in fp32 and round to nearest even. As on an NVIDIA GPU, a cast to fp8 saturates
(PTX `cvt.rn.satfinite`), and a sum of 16-bit floats rounds at every addition.

Left as Triton has them: the AMD and e4m3b15 forms of fp8, fp32 dots in full precision whatever
`input_precision` says, `tl.fma`, which rounds twice before 3.9, and `tl.clamp`, which keeps a NaN before 3.8.
The time an interpreter takes says nothing, so an autotuned kernel runs a configuration that is drawn by its
arguments: at other shapes another one.
"""

from __future__ import annotations

import inspect
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atrex.dsl.addresses import MOST_VIOLATIONS, Extent, Kind, Violation, Violations, extents
from atrex.dsl.triton_only import require_arguments, watch_functions
from atrex.errors import EnvironmentProblem

Array = NDArray[Any]

# What install() replaces in triton.runtime, by module, with the parameters its replacement relies on.
_HOOKS: dict[str, dict[str, tuple[str, ...]]] = {
    "interpreter": {
        "_get_np_dtype": ("tt_dtype",),
        "_convert_float": ("input", "input_dtype", "output_dtype", "rounding_mode"),
        "ReduceOps.sum": ("self", "input"),
        "GridExecutor._init_args_hst": ("self", "args_dev", "kwargs"),
        "InterpretedFunction.rewrite": ("self",),
    },
    "autotuner": {"Autotuner._bench": ("self", "args", "config", "meta")},
}
# The native functions through which the interpreter touches memory, and those that touch none.
_MEMORY = {"load", "store", "atomic_rmw", "atomic_cas"}
_ARITHMETIC = {"fma_fp32", "fma_fp64"}


@dataclass(slots=True)
class _Launch:
    """The launch in progress, and who listens."""

    kernel: str = ""
    extents: list[Extent] = field(default_factory=list)
    names: list[list[str]] = field(default_factory=list)
    violations: Violations | None = None
    withheld: bool = False


_launch = _Launch()


@contextmanager
def launches() -> Iterator[list[str]]:
    """Record the name of every kernel that the interpreter launches, in order; none before `install`."""
    names: list[str] = []
    _launch.names.append(names)
    try:
        yield names
    finally:
        _launch.names = [other for other in _launch.names if other is not names]


@contextmanager
def withheld() -> Iterator[None]:
    """Kernels launched inside do nothing. Raises EnvironmentProblem as `install` does."""
    install()
    _launch.withheld = True
    try:
        yield
    finally:
        _launch.withheld = False


@contextmanager
def address_check() -> Iterator[Violations]:
    """Check every unmasked lane of every load, store and atomic against the tensors passed to its launch.

    A lane outside is recorded and treated as masked off: a load gives `other`, or zero; a store does nothing.
    An address between a view's first and last element counts as inside, even in the gap between two rows.
    Raises EnvironmentProblem as `install` does. A check inside another one replaces it until it ends.
    """
    install()
    outer, _launch.violations = _launch.violations, Violations()
    try:
        yield _launch.violations
    finally:
        _launch.violations = outer


def install() -> None:
    """Repair the interpreter; once is enough, before any kernel runs.

    Raises EnvironmentProblem without TRITON_INTERPRET=1, without triton or ml_dtypes, and where this Triton
    lacks a hook that the repair needs.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise EnvironmentProblem("Triton interprets nothing: set TRITON_INTERPRET=1 before importing triton")
    try:
        import ml_dtypes  # noqa: F401
        import triton
    except ImportError as error:
        raise EnvironmentProblem(
            f"Triton's interpreter needs {error.name}: pip install 'atrex[triton]'"
        ) from error
    _install(str(triton.__version__))


@cache
def _install(version: str) -> None:
    from triton.runtime import autotuner, interpreter

    _require(version, {"interpreter": interpreter, "autotuner": autotuner})
    _repair_dtypes(interpreter)
    _repair_reductions(interpreter)
    builder = interpreter.InterpreterBuilder  # before 3.8 a NaN won over a number
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    _watch_launches(interpreter)
    interpreter._interpreter = _Memory(interpreter._interpreter, interpreter.interpreter_builder)
    autotuner.Autotuner._bench = _bench
    _try_out(version, interpreter)


def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
    """A configuration's standing in the draw; the least is chosen."""
    numbers = [tuple(arg.shape) if isinstance(arg, torch.Tensor) else arg for arg in args]
    return [zlib.crc32(f"{config} {numbers}".encode()) / 2**32]


def _require(version: str, modules: dict[str, Any]) -> None:
    """Raise EnvironmentProblem unless this Triton has every hook in the shape that the repair knows."""
    interpreter = modules["interpreter"]
    import triton.language as tl

    if not isinstance(tl.sum, interpreter.InterpretedFunction):
        raise EnvironmentProblem("triton was imported before TRITON_INTERPRET=1 was set: set it first")
    wrong = []
    for module, hooks in _HOOKS.items():
        for path, parameters in hooks.items():
            target = modules[module]
            for part in path.split("."):
                target = getattr(target, part, None)
            if not callable(target) or tuple(inspect.signature(target).parameters) != parameters:
                wrong.append(f"{module}.{path}")
    native = {name for name in dir(interpreter._interpreter) if name.islower() and name[0] != "_"}
    wrong += sorted(f"native {name}" for name in (_MEMORY - native) | (native - _MEMORY - _ARITHMETIC))
    if wrong:
        raise EnvironmentProblem(
            f"the interpreter of triton {version} has changed ({', '.join(wrong)}): install triton>=3.6,<3.10"
        )


def _try_out(version: str, interpreter: Any) -> None:
    """Compute 1 + 1 and a 1 x 1 dot in bf16, through the interpreter's own builder."""
    import triton.language as tl

    builder = interpreter.interpreter_builder
    one = builder.get_bf16(1.0)
    square = interpreter.TensorHandle(one.data.reshape(1, 1), tl.bfloat16)
    zero = interpreter.TensorHandle(np.zeros((1, 1), np.float32), tl.float32)
    total, product = builder.create_fadd(one, one), builder.create_dot(square, square, zero, None, 0)
    if (float(total.data[0]), float(product.data[0, 0])) != (2.0, 1.0):
        raise EnvironmentProblem(
            f"bf16 stays wrong in the interpreter of triton {version}: install triton>=3.6,<3.10"
        )


def _repair_dtypes(interpreter: Any) -> None:
    """Give bf16 and fp8 their NumPy type; then NumPy's own operations and casts are right."""
    import ml_dtypes
    import triton.language as tl

    types: dict[str, np.dtype[Any]] = {  # by name, since a pointer type has no hash
        tl.bfloat16.name: np.dtype(ml_dtypes.bfloat16),
        tl.float8e4nv.name: np.dtype(ml_dtypes.float8_e4m3fn),
        tl.float8e5.name: np.dtype(ml_dtypes.float8_e5m2),
    }
    native_dtype, native_convert = interpreter._get_np_dtype, interpreter._convert_float

    def get_np_dtype(tt_dtype: Any) -> np.dtype[Any]:
        name = tt_dtype.scalar.name
        return types[name] if name in types else native_dtype(tt_dtype)

    def convert_float(input: Array, input_dtype: Any, output_dtype: Any, rounding_mode: Any) -> Array:
        source, target = get_np_dtype(input_dtype), get_np_dtype(output_dtype)
        if np.uint8 in (source, target):  # a form of fp8 that ml_dtypes or NVIDIA lacks
            return native_convert(input, input_dtype, output_dtype, rounding_mode)  # type: ignore[no-any-return]
        towards_zero = rounding_mode == interpreter._ir.ROUNDING_MODE.RTZ
        return _convert(input, target, towards_zero=towards_zero)

    interpreter._get_np_dtype, interpreter._convert_float = get_np_dtype, convert_float
    if not hasattr(interpreter.InterpreterBuilder, "get_bf16"):  # before 3.9: no bf16 constants
        interpreter.InterpreterBuilder.get_bf16 = lambda _, value: interpreter.TensorHandle(
            np.array([value], np.float32).astype(types[tl.bfloat16.name]), tl.bfloat16
        )
    if hasattr(interpreter, "_mxfp_value_handle_to_float32"):  # since 3.8: decodes dot_scaled's operands
        native_decode = interpreter._mxfp_value_handle_to_float32
        interpreter._mxfp_value_handle_to_float32 = lambda handle: (
            handle.data.astype(np.float32) if handle.dtype.name in types else native_decode(handle)
        )


def _convert(values: Array, target: np.dtype[Any], *, towards_zero: bool) -> Array:
    """Cast floats: to nearest even or towards zero; an fp8 saturates, and keeps a NaN."""
    import ml_dtypes

    wide = values if values.dtype.itemsize > 4 else values.astype(np.float32)
    if target.itemsize == 1:
        most = float(ml_dtypes.finfo(target).max)
        wide = np.clip(wide, -most, most)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded: Array = wide.astype(target)
        if not towards_zero:
            return rounded
        # Sign and magnitude: the next value towards zero has the next lower bits.
        away = np.abs(rounded.astype(wide.dtype)) > np.abs(wide)
    bits = f"u{target.itemsize}"
    truncated: Array = rounded.view(bits) - away.astype(bits)
    return truncated.view(target)


def _repair_reductions(interpreter: Any) -> None:
    """NumPy adds fp16 in fp32, and bf16 one after another; a GPU adds in a tree and rounds every time."""
    native_sum = interpreter.ReduceOps.sum

    def tree_sum(self: Any, input: Any) -> Any:
        data, axis = input.handle.data, self.axis
        if data.dtype.itemsize > 2 or not input.dtype.is_floating():
            return native_sum(self, input)
        if axis is None:
            data, axis = data.reshape(-1, *[1] * (data.ndim - 1)), 0
        while data.shape[axis] > 1:  # a power of two, as every Triton shape is
            first, second = np.split(data, 2, axis)
            data = first + second
        if not self.keep_dims:
            data = data.squeeze(axis if self.axis is not None else None)
        return self.to_tensor(data, input.dtype)

    interpreter.ReduceOps.sum = tree_sum


def _watch_launches(interpreter: Any) -> None:
    """Note each launch's kernel and the extents of the tensors that it really gets, copies included."""
    native_init = interpreter.GridExecutor._init_args_hst

    def init_args_hst(self: Any, args_dev: Any, kwargs: Any) -> Any:
        args, named = native_init(self, args_dev, kwargs)
        _launch.kernel = self.fn.__name__
        for names in _launch.names:
            names.append(_launch.kernel)
        bound = inspect.getcallargs(self.fn, *args, **named)
        require_arguments(self.fn, bound)
        _launch.extents = [extent for name, value in bound.items() for extent in extents(name, value)]
        return args, named

    interpreter.GridExecutor._init_args_hst = init_args_hst
    native_call = interpreter.GridExecutor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if _launch.withheld else native_call(self, *args, **kwargs)

    interpreter.GridExecutor.__call__ = call
    watch_functions(interpreter.InterpretedFunction)


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The unsigned integer under a type that NumPy does not know itself."""
    return dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")


class _Memory:
    """The native memory functions: bf16 and fp8 pass as bits, and a lane outside its launch does not pass."""

    def __init__(self, native: Any, builder: Any) -> None:
        self.native, self.builder = native, builder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def load(self, pointers: Array, mask: Any, other: Array, dtype: np.dtype[Any]) -> Array:
        mask = self._inside("load", pointers, mask, dtype.itemsize)
        bits = _bits(dtype)
        loaded: Array = self.native.load(pointers, mask, other.astype(dtype, copy=False).view(bits), bits)
        return loaded.view(dtype)

    def store(self, pointers: Array, value: Array, mask: Any) -> None:
        mask = self._inside("store", pointers, mask, value.dtype.itemsize)
        self.native.store(pointers, value.view(_bits(value.dtype)), mask)

    def atomic_rmw(self, op: Any, pointers: Array, value: Array, mask: Any, sem: Any) -> Array:
        mask = self._inside("atomic", pointers, mask, value.dtype.itemsize)
        if _bits(value.dtype) == value.dtype:
            return self.native.atomic_rmw(op, pointers, value, mask, sem)  # type: ignore[no-any-return]
        if op != self.native.RMW_OP.FADD:
            raise NotImplementedError(f"atomic {op} on {value.dtype}")
        return self._add_one_by_one(pointers, value, mask)

    def atomic_cas(self, pointers: Array, expected: Array, value: Array, sem: Any) -> Array:
        dtype, bits = value.dtype, _bits(value.dtype)
        inside = self._inside("atomic", pointers, np.ones(pointers.shape, bool), bits.itemsize)
        old: Array = np.zeros(pointers.shape, bits)
        expected, value = (np.broadcast_to(each.view(bits), pointers.shape) for each in (expected, value))
        old[inside] = self.native.atomic_cas(pointers[inside], expected[inside], value[inside], sem)
        return old.view(dtype)

    def _add_one_by_one(self, pointers: Array, value: Array, mask: Array) -> Array:
        """Add a type that the native code lacks, lane after lane, since lanes may share an address."""
        old: Array = np.zeros(pointers.shape, value.dtype)
        one = np.ones(1, bool)
        for lane in zip(*np.nonzero(mask), strict=True):
            pointer = pointers[lane].reshape(1)
            old[lane] = self.load(pointer, one, np.zeros(1, value.dtype), value.dtype)[0]
            self.store(pointer, (old[lane] + value[lane]).reshape(1), one)
        return old

    def _inside(self, kind: Kind, pointers: Array, mask: Any, size: int) -> Array:
        """The mask without the lanes that leave every tensor of the launch; those are recorded."""
        wanted: Array = np.asarray(mask, dtype=bool)
        if _launch.violations is None:
            return wanted
        inside = np.zeros(pointers.shape, bool)
        for extent in _launch.extents:
            if extent.stop - extent.start >= size:
                inside |= (pointers >= extent.start) & (pointers <= extent.stop - size)
        outside = pointers[wanted & ~inside]
        _launch.violations.total += outside.size
        for address in outside[: MOST_VIOLATIONS - len(_launch.violations)].tolist():
            nearest = min((extent.reached_by(address, size) for extent in _launch.extents), default=(0, ""))
            _launch.violations.append(
                Violation(_launch.kernel, kind, address, nearest[1] or "no tensor", self.builder.grid_idx)
            )
        return wanted & inside
