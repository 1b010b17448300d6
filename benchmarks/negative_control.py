"""The negative control: eager PyTorch, which is right, must pass every gate but authenticity everywhere.

    python benchmarks/negative_control.py --device cuda --jobs 8 --output control.md

Exits with 1 if a gate rejects or cannot judge an operator's own reference.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from agent.bench_plan import spread
from agent.proposers.baselines import eager
from atrex.commands.common import choose_device
from atrex.gates import GATE_NAMES
from atrex.gates.context import Level
from atrex.judge import Engine
from atrex.problem import load_problem, operators
from atrex.provenance import provenance
from atrex.records import Device, Judgement, Status
from atrex.roofline import hardware_name
from atrex.verify import Verifier
from traces.workload import load_workload

_SHORT = {Status.PASS: "pass", Status.FAIL: "FAIL", Status.UNSUPPORTED: "n/a"}


def judge(operator: str, device: Device, level: Level, most: int | None) -> tuple[Judgement, float]:
    """All gates of one operator's eager reference, in a process with workers of its own."""
    started = time.monotonic()
    cases = spread(load_workload(operators=[operator]).cases(operator), most)
    with Engine(device) as engine, Verifier(engine) as verifier:
        candidate = eager(load_problem(operator).spec)
        return verifier.judge(candidate, cases, level=level, keep_going=True), time.monotonic() - started


def main() -> int:
    """Judge them all, several at a time, and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--level", choices=("screen", "full"), default="screen")
    parser.add_argument("--cases", type=int, help="at most so many an operator, evenly spread")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    device = choose_device(asked.device)
    known = provenance(hardware_name(device), device)
    lines = [
        f"# Negative control: eager PyTorch through the gates, {hardware_name(device)}",
        "",
        f"`python benchmarks/negative_control.py {' '.join(sys.argv[1:])}`, {time.strftime('%Y-%m-%d')}, "
        f"harness {known.harness}, torch {known.torch}. PyTorch computes here, so authenticity must fail, "
        "and every other gate must pass.",
        "",
        "| operator | " + " | ".join(GATE_NAMES) + " | s | |",
        "|---" * (len(GATE_NAMES) + 3) + "|",
    ]
    wrong = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, mp_context=context) as pool:
        names = asked.operators or operators()
        futures = {pool.submit(judge, name, device, asked.level, asked.cases): name for name in names}
        for future in as_completed(futures):
            judgement, seconds = future.result()
            verdicts = {verdict.gate: verdict for verdict in judgement.verdicts}
            cells = [_SHORT.get(verdicts[gate].status, verdicts[gate].status.name) for gate in GATE_NAMES]
            expected = ["FAIL" if gate == "authenticity" else "pass" for gate in GATE_NAMES]
            bad = [
                gate for gate, cell, right in zip(GATE_NAMES, cells, expected, strict=True) if cell != right
            ]
            wrong += bool(bad)
            reasons = "; ".join(f"{gate}: {verdicts[gate].reason}" for gate in bad).replace("|", "/")
            row = " | ".join((futures[future], *cells, f"{seconds:.0f}", reasons))
            lines.append(f"| {row} |")
            print(lines[-1], flush=True)
            if asked.output:
                asked.output.write_text("\n".join(lines[:6] + sorted(lines[6:])) + "\n", encoding="utf-8")
    print(f"{len(lines) - 6} operators, {wrong} not as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
