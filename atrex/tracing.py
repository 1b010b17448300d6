"""Tracing one call inside the worker: operations dispatched, and kernels launched with their origin."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch._library import custom_ops
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from atrex.dsl import cpp
from atrex.fallback.operations import classify_kernel, classify_op, on_lengths
from atrex.protocol import LaunchReport

_clock = time.perf_counter
_BOUNDS = r"(?:__launch_bounds__\([^)]*\)\s*)?"
# A kernel that Library.impl registered, as the dispatcher describes it: C++ ones have a signature here.
_PYTHON_KERNEL = re.compile(
    r"^(CPU|CUDA|Composite\w+)\S*: registered at .*\.py:\d+ :: \(none\) \[ boxed \]", re.M
)
_GLOBAL = re.compile(rf"__global__\s+{_BOUNDS}\w+\s+{_BOUNDS}(\w+)\s*\(")


class OperationTrace(TorchDispatchMode):
    """Names every ATen operation that the call dispatches."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[str] = Counter()
        self.sizes: dict[str, tuple[int, str]] = {}  # elements and sizes of the largest operands
        self.whole: Counter[str] = Counter()  # calls that touched nothing but integers
        self.wrappers: Counter[str] = Counter()  # the candidate's own operations, written in Python
        self.seconds = 0.0  # that operations took

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count the operation and run it."""
        name = func.name()
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if (body := _python_body(name, tensors)) is not None:  # torch would call it outside this mode
            self.wrappers[name] += 1
            with self:
                return body(*args, **(kwargs or {}))
        self.count[name] += 1
        self.whole[name] += bool(tensors) and not any(one.is_floating_point() for one in tensors)
        size = sum(one.numel() for one in tensors)
        if size >= self.sizes.get(name, (0, ""))[0]:
            self.sizes[name] = size, ", ".join(str(list(one.shape)) for one in tensors)
        started = _clock()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            self.seconds += _clock() - started


def _python_body(name: str, tensors: Sequence[torch.Tensor]) -> Callable[..., Any] | None:
    """The Python function that torch.library made an operation, in whichever way; None for others."""
    if name.startswith(("aten::", "prim::")):
        return None
    definition = getattr(custom_ops, "OPDEFS", {}).get(name.partition(".")[0])
    bodies = getattr(definition, "_backend_fns", {})
    if body := bodies.get(None) or next(iter(bodies.values()), None):
        return body  # type: ignore[no-any-return]
    if not tensors or not _PYTHON_KERNEL.search(torch._C._dispatch_dump(name)):
        return None
    key = "CUDA" if tensors[0].is_cuda else "CPU"
    kernel = torch.library.get_kernel(name, key)
    return partial(kernel.call_boxed, torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)))


def trace(
    call: Callable[[], Any], module: ModuleType, device: torch.device, *, metadata: bool = False
) -> tuple[LaunchReport, ...]:
    """Run `call` once warm, then once traced. Operations come first, then kernels.

    `metadata`: integers are lengths and tables, never results, so small arithmetic on them alone is glue.
    """
    with torch.no_grad(), _launched(module, device) as launched:
        call()
        operations = OperationTrace()
        with ExitStack() as stack:
            native = stack.enter_context(cpp.launches())
            interpreted = _interpreter_launches(stack) if device.type == "cpu" else []
            stack.enter_context(operations)
            call()
        reports = [
            LaunchReport(name=name, origin="setup", count=count)
            for name, count in sorted(operations.wrappers.items())
        ]
        reports += [
            LaunchReport(
                name=name,
                origin=_origin(operations, name, metadata, device),
                count=count,
                sizes=operations.sizes[name][1],
            )
            for name, count in sorted(operations.count.items())
        ]
        glue = frozenset(one.name.partition(".")[0] for one in reports if one.origin == "glue")
        glue -= {one.name.partition(".")[0] for one in reports if one.origin == "compute"}
        for name, count in sorted(Counter([*native, *interpreted]).items()):
            reports.append(LaunchReport(name=name, origin="own", count=count, stoppable=True))
        if device.type == "cuda":
            stoppable = own_kernels(module) | launched
            reports += _gpu_kernels(call, stoppable, stoppable | _cuda_kernels(module), glue)
    return tuple(reports)


def _origin(operations: OperationTrace, name: str, metadata: bool, device: torch.device) -> str:
    found = classify_op(name)
    if device.type == "cuda" and not name.startswith("aten::"):  # registered in C++: its kernels speak for it
        return "setup"
    plain = metadata and on_lengths(name) and operations.whole[name] == operations.count[name]
    return "glue" if found == "compute" and plain else found


def own_kernels(module: ModuleType) -> frozenset[str]:
    """Names of the Triton and Gluon kernels that the candidate's file defines."""
    names = set[str]()
    pending: list[Any] = list(vars(module).values())
    for value in pending:
        if isinstance(value, dict | list | tuple) and len(pending) < 10_000:
            pending += value.values() if isinstance(value, dict) else value
        while type(value).__module__.startswith("triton") and hasattr(value, "fn"):  # autotune, heuristics
            name = getattr(value.fn, "__name__", "")
            if hasattr(value.fn, "__code__"):
                names.add(name)
            value = value.fn
    return frozenset(names)


def _interpreter_launches(stack: ExitStack) -> list[str]:
    try:
        from atrex.dsl import interpreter
    except ImportError:
        return []
    return stack.enter_context(interpreter.launches())


@contextmanager
def _launched(module: ModuleType, device: torch.device) -> Iterator[set[str]]:
    """Names of the compiled Triton and Gluon kernels launched inside that the candidate's file defines.

    A kernel may be made in a function or hang on a class, where `own_kernels` does not look.
    """
    names = set[str]()
    if device.type != "cuda":  # the interpreter says itself what it launches
        yield names
        return
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield names
        return
    native = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        compiled = native(self, *args, **kwargs)
        if self.fn.__code__.co_filename == module.__file__:
            names.update((self.fn.__name__, getattr(compiled, "name", self.fn.__name__)))
        return compiled

    with mock.patch.object(JITFunction, "run", run):
        yield names


def _cuda_kernels(module: ModuleType) -> set[str]:
    """Names of the CUDA kernels that the candidate's own source defines and launches."""
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    return {name for name in _GLOBAL.findall(source) if re.search(rf"\b{name}\b[^;{{}}]*<<<", source)}


def operations_by_id(events: Iterable[tuple[int, str]]) -> dict[int, str]:
    """Operations by the number that links kernels to them, of what a profiler saw on the host.

    Calls of the CUDA runtime and driver stand among them with numbers of their own, which may be those of
    operations: of all these names only an operation's has a namespace.
    """
    return {number: name for number, name in events if "::" in name}


def _gpu_kernels(
    call: Callable[[], Any], stoppable: frozenset[str], own: frozenset[str], glue: frozenset[str]
) -> list[LaunchReport]:
    """Kernels of one call as CUPTI saw them, with their device time and streams.

    `stoppable` are those of `own` that Triton launches. What an operation of `glue` launches is glue,
    whatever its name.
    """
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        call()
        torch.cuda.synchronize()
    events = profiler.profiler.kineto_results.events()
    operations = operations_by_id(
        (event.correlation_id(), event.name()) for event in events if event.device_type() == DeviceType.CPU
    )
    seen: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for event in events:
        if event.device_type() == DeviceType.CUDA:
            origin = classify_kernel(event.name(), own)
            if origin == "library" and operations.get(event.linked_correlation_id()) in glue:
                origin = "glue"
            seen[event.name(), origin, event.device_resource_id()].append(event.duration_ns() / 1e3)
    return [
        LaunchReport(
            name=name,
            origin=origin,
            count=len(times),
            device_us=sum(times),
            stream=stream,
            stoppable=origin == "own" and classify_kernel(name, stoppable) == "own",
        )
        for (name, origin, stream), times in sorted(seen.items())
    ]
