"""`atrex fallbacks`: who did the work, for a file, a run or a directory of thousands of files."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import typer

from atrex.commands.common import console_for_output, print_json
from atrex.errors import UsageError
from atrex.fallback.records import Hunt, Outcome
from atrex.fallback.sarif import sarif
from atrex.fallback.scan import Job, find, hunt, scan
from atrex.fallback.terminal import render
from atrex.ledger import merge_results, read
from atrex.runs import METADATA, find_run, runs_root
from traces.workload import load_workload

Fail = Literal["partial", "unresolved", "dead-kernel", "fallback", "broken"]


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    path: str
    operator: str
    entry: str
    workload: str
    jobs: int | None
    fail_on: Fail | None
    runs: Path | None
    as_sarif: bool
    as_json: bool


def fallbacks(options: Options) -> None:
    """Read the files, print the table, JSON or SARIF. Exits 1 if a file is as bad as `fail_on`, or worse."""
    root, jobs, speedups = _jobs(options)
    found = hunt(list(scan(jobs, options.jobs)), _weights(options.workload), speedups)
    if options.as_sarif:
        print_json(sarif(found, root))
    elif options.as_json:
        print_json(found)
    else:
        console_for_output().print(render(found))
    if options.fail_on and _as_bad(found, Outcome(options.fail_on)):
        raise typer.Exit(1)


def _as_bad(found: Hunt, limit: Outcome) -> bool:
    order = list(Outcome)
    return any(order.index(report.verdict) >= order.index(limit) for report in found.files)


def _weights(workload: str) -> dict[str, float]:
    """Weight of every operator of a workload."""
    whole = load_workload(workload)
    return {name: one.weight for name, one in whole.operators.items()}


def _jobs(options: Options) -> tuple[Path, list[Job], dict[str, float]]:
    """What to read, and for a run the speed-ups that were measured. Raises UsageError."""
    path = Path(options.path)
    if path.exists() and not (path / METADATA).is_file():
        jobs = [Job(one, name, options.operator, options.entry) for one, name in find(path)]
        return (path if path.is_dir() else Path()), jobs, {}
    try:
        run = find_run(options.path, runs_root(options.runs))
    except UsageError as error:
        raise UsageError(f"{options.path}: no such file or directory, and no run: {error}") from None
    files = find(run.path / "kernels")
    operators, gains = dict[str, str](), defaultdict[str, list[float]](list)
    for result in merge_results(read(run.ledger)).values():
        operators[result.candidate] = result.operator
        if result.accepted and result.vs_eager is not None:
            gains[result.candidate].append(math.log(result.vs_eager.median))
    jobs = [
        Job(one, name, options.operator or operators.get(one.stem, run.meta.operator), options.entry)
        for one, name in files
    ]
    speedups = {job.name: math.exp(sum(g) / len(g)) for job in jobs if (g := gains.get(job.path.stem))}
    return run.path / "kernels", jobs, speedups
