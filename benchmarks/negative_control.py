"""The negative control: eager PyTorch, which is right, must pass every gate but authenticity everywhere.

    python benchmarks/negative_control.py --device cuda --jobs 8 --output control.md

Exits with 1 if a gate rejects or cannot judge an operator's own reference.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import as_completed
from pathlib import Path

from measured import called, conditions

from agent.bench_plan import spread
from agent.proposers.baselines import eager
from atrex.commands.common import choose_device
from atrex.errors import run_script
from atrex.gates import GATES, GRADIENTS
from atrex.gates.context import Level
from atrex.judge import Engine
from atrex.pool import process_pool
from atrex.problem import load_problem, operators, resolve_operator
from atrex.records import Device, Judgement, Status, Verdict
from atrex.roofline import hardware_name
from atrex.verify import Verifier
from traces.workload import load_workload

_GATES = tuple(gate.name for gate in (*GATES, GRADIENTS))
_SHORT = {Status.PASS: "pass", Status.FAIL: "FAIL", Status.UNSUPPORTED: "n/a"}


def judge(operator: str, device: Device, level: Level, most: int | None) -> tuple[Judgement, float]:
    """All gates of one operator's eager reference, in a process with workers of its own."""
    started = time.monotonic()
    cases = spread(load_workload(operators=[operator]).cases(operator), most)
    # Gates in turn: operators go beside one another.
    with Engine(device) as engine, Verifier(engine, beside=False) as verifier:
        candidate = eager(load_problem(operator).spec)
        return verifier.judge(candidate, cases, level=level, keep_going=True), time.monotonic() - started


def main() -> int:
    """Judge them all, several at a time, and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*", type=resolve_operator)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--level", choices=("screen", "full"), default="screen")
    parser.add_argument("--cases", type=int, help="at most so many an operator, evenly spread")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    device = choose_device(asked.device)
    command = called(__file__)
    lines = [
        f"# Negative control: eager PyTorch through the gates, {hardware_name(device)}",
        "",
        f"{conditions(command, device)}. PyTorch computes here, so authenticity must fail, "
        "and every other gate that the operator has must pass.",
        "",
        "| operator | " + " | ".join(_GATES) + " | s | |",
        "|---" * (len(_GATES) + 3) + "|",
    ]
    rows: dict[str, str] = {}
    wrong: set[str] = set()

    def note(name: str, judgement: Judgement, seconds: float) -> None:
        rows[name], fine = _row(name, judgement, seconds)
        (wrong.discard if fine else wrong.add)(name)
        print(rows[name], flush=True)
        if asked.output:
            asked.output.write_text("\n".join((*lines, *sorted(rows.values()))) + "\n", encoding="utf-8")

    names = asked.operators or operators()
    with process_pool(asked.jobs) as pool:
        futures = {pool.submit(judge, name, device, asked.level, asked.cases): name for name in names}
        for future in as_completed(futures):
            note(futures[future], *future.result())
    for name in sorted(wrong):
        if "out of memory" in rows[name]:  # which the neighbours may have filled
            note(name, *judge(name, device, asked.level, asked.cases))
    print(f"{len(rows)} operators, {len(wrong)} not as they should be")
    return 1 if wrong else 0


def _row(name: str, judgement: Judgement, seconds: float) -> tuple[str, bool]:
    """An operator's row of the table, and whether it is as it should be."""
    verdicts = {verdict.gate: verdict for verdict in judgement.verdicts}
    cells = [_cell(verdicts.get(gate)) for gate in _GATES]
    expected = ["FAIL" if gate == "authenticity" else "pass" for gate in _GATES]
    bad = [gate for gate, cell, right in zip(_GATES, cells, expected, strict=True) if cell not in (right, "")]
    slowest = max(judgement.verdicts, key=lambda verdict: verdict.seconds)
    time_of = f"{seconds:.0f} ({slowest.gate} {slowest.seconds:.0f})"
    reasons = "; ".join(f"{gate}: {verdicts[gate].reason}" for gate in bad).replace("|", "/")
    return f"| {' | '.join((name, *cells, time_of, reasons))} |", not bad


def _cell(verdict: Verdict | None) -> str:
    """Nothing where the operator has no such gate."""
    return "" if verdict is None else _SHORT.get(verdict.status, verdict.status.name)


if __name__ == "__main__":
    run_script(main)
