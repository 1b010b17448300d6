"""`atrex fallbacks`: who did the work, for a file, a run or a directory of thousands of files."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from atrex.commands.common import DeviceOption, console_for_output, print_json
from atrex.commands.options import FailOn
from atrex.errors import UsageError
from atrex.fallback.records import FileReport, Hunt, Outcome
from atrex.fallback.sarif import sarif
from atrex.fallback.scan import Job, find, hunt, scan
from atrex.fallback.static import known_operator
from atrex.fallback.terminal import render
from atrex.ledger import merge_results, read
from atrex.records import Case
from atrex.runs import METADATA, find_run, runs_root
from traces.workload import load_workload


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    path: str
    static: bool
    device: DeviceOption
    cases: int
    operator: str
    entry: str
    workload: str
    jobs: int | None
    fail_on: FailOn | None
    runs: Path | None
    as_sarif: bool
    as_json: bool


def fallbacks(options: Options) -> None:
    """Read the files, run them, print the table, JSON or SARIF.

    Exits 1 if a file is as bad as `fail_on`, or worse.
    """
    root, jobs, speedups = _jobs(options)
    reports = list(scan(jobs, options.jobs))
    if not options.static:
        reports = _run(options, jobs, reports)
    found = hunt(reports, _weights(options.workload), speedups)
    if options.as_sarif:
        print_json(sarif(found, root))
    elif options.as_json:
        print_json(found)
    else:
        console_for_output().print(render(found))
    if options.fail_on and _as_bad(found, Outcome(options.fail_on)):
        raise typer.Exit(1)


def _run(options: Options, jobs: Sequence[Job], reports: Sequence[FileReport]) -> list[FileReport]:
    """The dynamic pass over what is for an operator of ours and could be read."""
    from atrex.candidate import load_candidate
    from atrex.commands.common import choose_device, operator_cases
    from atrex.fallback.dynamic import Run, examine_all, few_cases
    from atrex.judge import Engine

    device = choose_device(options.device)
    known: dict[str, tuple[Case, ...]] = {}
    runs = list[Run]()
    for job, report in zip(jobs, reports, strict=True):
        operator = report.operator
        if operator and report.verdict is not Outcome.BROKEN:
            if operator not in known:
                whole = operator_cases(options.workload, operator)
                known[operator] = few_cases(operator, whole, options.cases, reduced=device == "cpu")
            runs.append(Run(load_candidate(job.path, operator), known[operator], report))
    with Engine(device) as engine:
        done = {one.file: one for one in examine_all(engine, runs, options.jobs or 1)}
    return [done.get(report.file, report) for report in reports]


def _as_bad(found: Hunt, limit: Outcome) -> bool:
    order = list(Outcome)
    return any(order.index(report.verdict) >= order.index(limit) for report in found.files)


def _weights(workload: str) -> dict[str, float]:
    """Weight of every operator of a workload."""
    whole = load_workload(workload)
    return {name: one.weight for name, one in whole.operators.items()}


def _jobs(options: Options) -> tuple[Path, list[Job], dict[str, float]]:
    """What to read, and for a run the speed-ups that were measured. Raises UsageError."""
    if options.operator:
        options = replace(options, operator=known_operator(options.operator))
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
