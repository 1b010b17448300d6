"""Whether inputs, reference and oracle of every production case fit on this machine, and how long they take.

    python benchmarks/feasibility.py --output docs/results/h200-feasibility.md      # on a GPU
    python benchmarks/feasibility.py --scale small                                  # anywhere

An output too large to compare whole is judged through a window of rows where its rows are independent, as
the gates do it. Exits with 1 if a case does not fit or the reference is outside its own bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from atrex.gates.comparators import IllConditionedError
from atrex.gates.context import make_plan
from atrex.gates.outputs import judge_outputs
from atrex.inputs import build_inputs, window_spec
from atrex.judge import new_seed
from atrex.problem import Problem, load_problem, operators
from atrex.protocol import InputSpec
from atrex.records import Case, Shape
from traces.workload import load_workload


def examine(problem: Problem, shape: Shape, device: torch.device) -> str:
    """Draw, compute and judge the reference on one shape; what is wrong, else an empty string."""
    spec = InputSpec(shape=shape, seed=new_seed())
    inputs, _ = build_inputs(problem, spec, device)
    outputs = problem.reference(shape, inputs)
    judged = make_plan("full", "cuda" if device.type == "cuda" else "native").judged_elements
    if problem.rows is not None and problem.elements(shape) > judged:
        rows = shape.dims[problem.rows]
        count = max(1, min(rows, 4096))
        sliced = {
            n: v[rows - count :].clone() if n in problem.row_outputs() else v for n, v in outputs.items()
        }
        del inputs, outputs
        spec, outputs = window_spec(problem, spec, rows - count, count), sliced
        inputs, _ = build_inputs(problem, spec, device)
    try:
        found, _ = judge_outputs(problem, spec.shape, inputs, outputs)
    except IllConditionedError as error:
        return f"inconclusive: {error}"
    return f"{found[0]} {found[1].what}" if found else ""


def rows_of(device: torch.device, wanted: list[str], small: bool) -> Iterator[tuple[Case, str, float, float]]:
    """Each case with what is wrong, seconds, and the peak of GPU memory in GiB."""
    for operator in wanted or operators():
        problem = load_problem(operator)
        for case in load_workload(operators=[operator]).cases(operator):
            shape = problem.shape(problem.small(case) if small else case)
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            started = time.monotonic()
            try:
                wrong = examine(problem, shape, device)
            except (torch.OutOfMemoryError, MemoryError) as error:
                wrong = f"does not fit: {str(error).splitlines()[0][:120]}"
            peak = torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else 0.0
            yield case, wrong, time.monotonic() - started, peak


def main() -> int:
    """Examine all cases, and print a line for each operator and for each case with a complaint."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--scale", choices=("full", "small"), default="full")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    lines = [
        f"# Feasibility: {name}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}, scale {asked.scale}",
        "",
    ]
    lines += ["| case | s | peak GiB | complaint |", "|---|---|---|---|"]
    failed = 0
    for case, wrong, seconds, peak in rows_of(device, asked.operators, asked.scale == "small"):
        failed += bool(wrong) and not wrong.startswith("inconclusive")
        lines.append(f"| {case.id} | {seconds:.2f} | {peak:.1f} | {wrong} |")
        print(lines[-1], flush=True)
        if asked.output:  # line by line: a run that is cut off keeps what it saw
            asked.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines) - 4} cases, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
