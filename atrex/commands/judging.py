"""`atrex verify`, `atrex measure` and `atrex compare`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from atrex.candidate import Candidate, load_candidate
from atrex.commands.common import DeviceOption, choose_cases, choose_device, console_for_output, print_json
from atrex.errors import EnvironmentProblem, RejectedError
from atrex.gates import GATE_NAMES
from atrex.gates.context import Level
from atrex.judge import CandidateFault, Engine, Timeouts
from atrex.measure import Timing, measure_case, protocol_for
from atrex.problem import load_problem, resolve_operator
from atrex.records import Dsl, Judgement, Verdict
from atrex.report.terminal import render_verdict_line, render_verdicts
from atrex.roofline import bound, detect
from atrex.telemetry import gpu_telemetry
from atrex.verify import Verifier


def verify(
    path: Path,
    operator: str,
    *,
    device: DeviceOption,
    dsl: Dsl | None,
    workload: str,
    gates: Sequence[str],
    cases: Sequence[str],
    level: Level,
    everything: bool,
    seed: int | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Run the gates on one file. Raises RejectedError (exit 1) unless it is accepted."""
    operator = resolve_operator(operator)
    candidate = load_candidate(path, operator, dsl)
    chosen = choose_cases(workload, operator, cases)
    console = Console(stderr=as_json, markup=False)
    with (
        Engine(choose_device(device), timeouts=timeouts_of(timeout)) as engine,
        Verifier(engine) as verifier,
    ):
        judgement = verifier.judge(
            candidate,
            chosen,
            level=level,
            gates=gates or GATE_NAMES,
            seed=seed,
            keep_going=everything,
            path=path,
            progress=lambda verdict: _progress(console, verdict),
        )
    if as_json:
        print_json(judgement)
    else:
        console.print(render_verdicts(judgement))
    require_accepted(judgement, gates, path)


def _progress(console: Console, verdict: Verdict) -> None:
    if console.is_terminal:
        console.print(render_verdict_line(verdict))


def require_accepted(judgement: Judgement, gates: Sequence[str], path: Path) -> None:
    """Exit 1 unless all gates that were asked for passed."""
    passed = all(v.status == "PASS" for v in judgement.verdicts) if gates else judgement.accepted
    if passed:
        return
    if judgement.blamed and judgement.blamed.status == "ERROR":
        raise EnvironmentProblem(f"{path}: the harness could not judge: {judgement.objection}")
    raise RejectedError(f"{path}: not accepted: {judgement.objection}")


def timeouts_of(seconds: float | None) -> Timeouts:
    """The usual ones, or the one that the command line states for everything."""
    return Timeouts() if seconds is None else Timeouts(seconds, seconds, seconds, seconds)


def measure(
    paths: Sequence[Path],
    operator: str,
    *,
    device: DeviceOption,
    workload: str,
    cases: Sequence[str],
    limit: int | None,
    quick: bool,
    as_json: bool,
) -> None:
    """Time one file, or two in pairs, on the workload's cases. Exit 1 if a candidate fails."""
    operator = resolve_operator(operator)
    candidates = [load_candidate(path, operator) for path in paths]
    chosen = choose_cases(workload, operator, cases, limit)
    where = choose_device(device)
    rules = protocol_for(where, quick=quick)
    problem = load_problem(operator)
    hardware = detect(where) if where == "cuda" else None
    rows: list[dict[str, Any]] = []
    with Engine(where) as engine:
        sessions = [engine.session(candidate) for candidate in candidates]
        try:
            for case in chosen:
                cost = problem.cost(problem.shape(case))
                floor = bound(cost, hardware, None).sol_us if hardware else 0.0
                timings = measure_case(sessions, case, rules, gpu_telemetry(where), floor)
                rows.append(_row(case.id, candidates, timings))
        except CandidateFault as fault:
            raise RejectedError(f"not measured: {fault.kind.value}: {fault.message}") from None
        finally:
            for session in sessions:
                session.close()
    if as_json:
        print_json(rows)
    else:
        console_for_output().print(_table(paths, rows))


def _row(case: str, candidates: Sequence[Candidate], timings: Sequence[Timing]) -> dict[str, Any]:
    row: dict[str, Any] = {"case": case, "candidates": [candidate.id for candidate in candidates]}
    row["latency"] = [timing.latency.model_dump(mode="json") for timing in timings]
    if len(timings) == 2:
        row["speedup_of_first"] = timings[0].ratio_to(timings[1]).model_dump(mode="json")
    return row


def _table(paths: Sequence[Path], rows: Sequence[dict[str, Any]]) -> Table:
    table = Table("case", *(f"{path.name} µs [p10, p90]" for path in paths), "host µs", "method")
    if len(paths) == 2:
        table.add_column("first is faster by")
    for row in rows:
        times = [f"{t['median_us']:.2f} [{t['p10_us']:.2f}, {t['p90_us']:.2f}]" for t in row["latency"]]
        hosts = "/".join(f"{t['host_us']:.1f}" for t in row["latency"] if t["host_us"] is not None)
        cells = [row["case"], *times, hosts, row["latency"][0]["method"]]
        if ratio := row.get("speedup_of_first"):
            cells.append(f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]")
        table.add_row(*cells)
    return table
