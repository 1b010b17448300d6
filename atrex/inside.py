"""What runs in the worker to profile a candidate: torch.profiler, Triton's hooks, a marked range for ncu.

What it returns is a claim; `agent.profiling` checks it. NOT YET RUN ON A GPU, where it matters.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch

WARM_UP = 3
MARKED = 2
_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver")
_FIELDS = ("cat", "name", "ts", "dur")
_ARGUMENTS = ("grid", "block", "registers per thread", "shared memory", "est. achieved occupancy %")
_MOST_EVENTS = 4_000  # 300 bytes each: a reply may have 4 MiB


def seen(call: Callable[[], object], module: ModuleType, *, marked: bool) -> dict[str, Any]:
    """Kineto's events of a warm call and what its Triton kernels take; nothing where ncu looks (`marked`)."""
    with torch.no_grad():
        if marked:
            mark(call)
            return {}
        with compiled(module) as kernels:
            found = events(call)
        return {"events": found, "resources": resources(kernels)}


def events(call: Callable[[], object]) -> list[dict[str, Any]]:
    """Kineto's events of one warm call, as `timeline.read` takes them; empty without a GPU."""
    from torch.profiler import ProfilerActivity, profile

    for _ in range(WARM_UP):
        call()
    _synchronise()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        _synchronise()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        profiler.export_chrome_trace(str(path))
        found = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return [_reduced(event) for event in found if event.get("cat") in _CATEGORIES][:_MOST_EVENTS]


def _reduced(event: dict[str, Any]) -> dict[str, Any]:
    arguments = event.get("args", {})
    kept = {name: arguments[name] for name in _ARGUMENTS if name in arguments}
    return {name: event[name] for name in _FIELDS if name in event} | {"args": kept}


def mark(call: Callable[[], object]) -> None:
    """Warm up, then call twice in the range that ncu profiles the second half of."""
    for _ in range(WARM_UP):
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for _ in range(MARKED):
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


@contextmanager
def compiled(module: ModuleType) -> Iterator[dict[str, Any]]:
    """Triton kernels of the candidate's file that are launched inside, as compiled, by name."""
    kernels = dict[str, Any]()
    try:
        from triton.runtime.jit import JITFunction
    except ImportError:
        yield kernels
        return
    native = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        kernel = native(self, *args, **kwargs)
        if self.fn.__code__.co_filename == module.__file__ and hasattr(kernel, "metadata"):
            kernels[kernel.metadata.name] = kernel
        return kernel

    with mock.patch.object(JITFunction, "run", run):
        yield kernels


def resources(kernels: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Registers, spills, shared memory and warps of launched `triton.compiler.CompiledKernel`s, by name.

    A kernel that was never loaded on a device knows no registers, and is left out.
    """
    return {
        name: {
            "registers": kernel.n_regs,
            "spilled": kernel.n_spills,
            "shared_bytes": kernel.metadata.shared,
            "warps": kernel.metadata.num_warps,
        }
        for name, kernel in kernels.items()
        if getattr(kernel, "n_regs", None) is not None
    }


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
