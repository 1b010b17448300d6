"""Machine code of Triton kernels that reads uniform registers which nothing has written. Needs no GPU.

    python benchmarks/sass_check.py tests/honest/chunk_gated_delta_rule_state/triton/chunk_loop.py
    python benchmarks/sass_check.py KERNEL.py … --ptxas /usr/local/cuda/bin/ptxas --shapes 8

ptxas 12.8.93, which Triton 3.6 brings along, computes the descriptor of a tensor core's operand from a
uniform register before anything has been written to it. What the kernel then multiplies depends on what ran
before: right results on one day, wrong ones or an illegal memory access on the next. Every kernel is called
through its Model with shapes and layouts as the gates have them, but its launches are only compiled, for
sm_90a; what the wrapper makes of the outputs is not looked at. A file lies in a folder of its operator's
name. Exits with 1 if a register is read before it is written.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import torch
import triton
from sass import read_before_written
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from atrex.contract import LayoutKind
from atrex.errors import EnvironmentProblem, UsageError, run_script
from atrex.gates.context import distinct
from atrex.inputs import build_inputs
from atrex.problem import Problem, load_problem, operators
from atrex.protocol import InputSpec
from atrex.records import Shape
from traces.workload import load_workload

TARGET = GPUTarget("cuda", 90, 32)
BIN = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
_LAYOUTS: tuple[LayoutKind, ...] = ("odd_row_stride", "offset")


@dataclass(slots=True)
class Compiled:
    """What launches were compiled to, and where that is wrong."""

    ptxas: Path
    inputs: str = ""
    seen: set[str] = field(default_factory=set)
    wrong: dict[str, list[str]] = field(default_factory=dict)

    def look_at(self, name: str, ptx: str) -> None:
        """Assemble a kernel that was not seen yet, and read the result."""
        if ptx in self.seen:
            return
        self.seen.add(ptx)
        with tempfile.TemporaryDirectory() as folder:
            source, binary = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
            source.write_text(ptx, encoding="utf-8")
            _run(self.ptxas, "-arch=sm_90a", source, "-o", binary)
            listing = _run(BIN / "nvdisasm", "-c", binary)
        lines = re.sub(r"/\*.*?\*/", "", listing).splitlines()
        if found := read_before_written(lines):
            self.wrong[f"{name} ({self.inputs})"] = found


def _run(tool: Path, *arguments: str | Path) -> str:
    """What a tool prints. Raises EnvironmentProblem if it is not there, or fails."""
    try:
        return subprocess.run([tool, *arguments], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise EnvironmentProblem(f"{tool}: {getattr(error, 'stderr', '') or error}") from None


class _Driver:
    """As much of a driver as compiling asks for."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return TARGET


def compile_only(compiled: Compiled) -> None:
    """From now on a launch in this process compiles, and nothing more."""
    triton.runtime.driver.set_active(_Driver())
    run = JITFunction.run

    def launch(self: Any, *arguments: Any, **options: Any) -> None:
        kernel = run(self, *arguments, **{**options, "warmup": True})
        compiled.look_at(self.fn.__name__, kernel.asm["ptx"])

    JITFunction.run = launch


def specs(problem: Problem, most: int) -> Iterator[tuple[Shape, InputSpec]]:
    """Small production cases and odd shapes, packed, and with one input in each layout."""
    cases = load_workload(operators=[problem.operator]).cases(problem.operator)
    shapes = distinct(problem.shape(problem.small(case)) for case in cases)[: most // 2]
    shapes += list(problem.odd())[: most - len(shapes)]
    for shape in shapes:
        if not 0 < problem.elements(shape) < 1 << 24:
            continue
        yield shape, InputSpec(shape=shape, seed=1)
        for name, declared in problem.spec.inputs.items():
            if declared.role in ("data", "parameter"):
                for layout in _LAYOUTS:
                    yield shape, InputSpec(shape=shape, seed=1, layouts={name: layout})


def check(path: Path, compiled: Compiled, most: int, seconds: float) -> str:
    """Compile what a file launches; one line about it. Raises UsageError if that is nothing."""
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    operator = next((part for part in path.resolve().parts if part in operators()), None)
    if operator is None:
        raise UsageError(f"{path}: lies in no folder with an operator's name")
    problem, until = load_problem(operator), time.monotonic() + seconds
    module_spec = spec_from_file_location(f"kernel_{abs(hash(path))}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    before, calls, refused, wrong = len(compiled.seen), 0, 0, len(compiled.wrong)
    for shape, spec in specs(problem, most):
        if time.monotonic() > until:
            break
        inputs, _ = build_inputs(problem, spec, torch.device("cpu"))
        compiled.inputs, calls = _told(operator, spec), calls + 1
        try:
            module.Model(**shape.init)(**inputs)
        except EnvironmentProblem:
            raise
        except Exception as error:  # noqa: BLE001 - what no kernel has computed may be any nonsense
            refused += 1
            print(f"  {path.stem}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
    new, bad = len(compiled.seen) - before, len(compiled.wrong) - wrong
    if not new:
        raise UsageError(f"{path}: launches nothing that was not seen before, in {calls} calls")
    return f"{path}: {calls} calls ({refused} ended early), {new} binaries, {bad} read what was never written"


def _told(operator: str, spec: InputSpec) -> str:
    extents = ", ".join(f"{name} {extent}" for name, extent in spec.shape.dims.items())
    layouts = ", ".join(f"{name} {layout}" for name, layout in spec.layouts.items())
    return f"{operator}: {extents}; {layouts or 'packed'}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check some kernels."""
    parser = argparse.ArgumentParser(description="Uniform registers that are read before they are written.")
    parser.add_argument("kernels", nargs="+", type=Path)
    parser.add_argument(
        "--ptxas", type=Path, default=BIN / "ptxas", help="default: the one Triton brings along"
    )
    parser.add_argument("--shapes", type=int, default=6, help="the most shapes a kernel")
    parser.add_argument("--seconds", type=float, default=120.0, help="the longest time for a kernel")
    asked = parser.parse_args(arguments)
    print(f"triton {triton.__version__}, {_run(asked.ptxas, '--version').split()[-1]}")
    compiled = Compiled(asked.ptxas)
    compile_only(compiled)
    for path in asked.kernels:
        print(check(path, compiled, asked.shapes, asked.seconds), flush=True)
    for name, lines in compiled.wrong.items():
        print(f"  {name}: {'; '.join(lines)}")
    return 1 if compiled.wrong else 0


if __name__ == "__main__":
    run_script(main)
