"""Many files: which there are, and their verdicts, several at a time."""

from __future__ import annotations

import math
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from atrex.errors import UsageError
from atrex.fallback.records import FileReport, Finding, Hunt, Outcome, Summary
from atrex.fallback.static import analyse, raise_recursion_limit
from atrex.pool import process_pool

_FEW = 48  # files that one process reads before others would have started
_CHUNK = 32


@dataclass(frozen=True, slots=True)
class Job:
    """One file to read."""

    path: Path
    name: str
    operator: str = ""
    entry: str = ""


def find(path: Path) -> list[tuple[Path, str]]:
    """A file, or all Python files below a directory, with the names to show. Raises UsageError."""
    if path.is_file():
        return [(path, str(path))]
    if not path.is_dir():
        raise UsageError(f"{path}: no such file, directory or run")
    found = [
        one
        for one in sorted(path.rglob("*.py"))
        if not any(part.startswith(".") or part == "__pycache__" for part in one.relative_to(path).parts)
        and one.is_file()
    ]
    if not found:
        raise UsageError(f"{path}: no Python file in it")
    return [(one, str(one.relative_to(path))) for one in found]


def scan(jobs: Sequence[Job], processes: int | None = None) -> Iterator[FileReport]:
    """Their verdicts in order. A file that ends its process costs its own row only."""
    processes = processes or os.cpu_count() or 1
    if len(jobs) <= _FEW or processes == 1:
        raise_recursion_limit()
        yield from map(_read, jobs)
        return
    parts = [jobs[at : at + _CHUNK] for at in range(0, len(jobs), _CHUNK)]
    done = 0
    try:
        with process_pool(processes, raise_recursion_limit) as pool:
            for reports in pool.map(_read_all, parts):
                yield from reports
                done += 1
    except BrokenProcessPool:
        for job in (job for part in parts[done:] for job in part):
            yield _alone(job)


def _read(job: Job) -> FileReport:
    return analyse(job.path, name=job.name, operator=job.operator, entry=job.entry)


def _read_all(jobs: Sequence[Job]) -> list[FileReport]:
    return [_read(job) for job in jobs]


def _alone(job: Job) -> FileReport:
    """In a process of its own, which it may end."""
    try:
        with process_pool(1, raise_recursion_limit) as pool:
            return pool.submit(_read, job).result()
    except BrokenProcessPool:
        reason = "it ends the process that reads it"
        finding = Finding(kind="broken", operation="the file", line=1, column=1, reason=reason)
        return FileReport(file=job.name, verdict=Outcome.BROKEN, reason=reason, findings=(finding,))


def hunt(
    reports: Sequence[FileReport],
    weights: Mapping[str, float],
    speedups: Mapping[str, float] | None = None,
) -> Hunt:
    """Reports with their summary; `weights` by operator, `speedups` over eager by file."""
    verdicts = Counter(report.verdict for report in reports)
    summary = Summary(
        files=len(reports),
        verdicts={outcome: verdicts[outcome] for outcome in Outcome},
        flagged=sum(report.flagged for report in reports),
        weight=_weight(reports, weights),
        speedup_from_fallbacks=_speedup(reports, speedups or {}),
    )
    return Hunt(files=tuple(reports), summary=summary)


def _weight(reports: Sequence[FileReport], weights: Mapping[str, float]) -> dict[Outcome, float] | None:
    by_operator = defaultdict[str, Counter[Outcome]](Counter)
    for report in reports:
        if report.operator in weights:
            by_operator[report.operator][report.verdict] += 1
    whole = sum(weights[operator] for operator in by_operator)
    if not whole:
        return None
    shares = dict.fromkeys(Outcome, 0.0)
    for operator, counts in by_operator.items():
        for outcome, count in counts.items():
            shares[outcome] += weights[operator] / whole * count / counts.total()
    return shares


def _speedup(reports: Sequence[FileReport], speedups: Mapping[str, float]) -> float | None:
    gains = [
        (report, math.log(speedups[report.file])) for report in reports if speedups.get(report.file, 0) > 1
    ]
    whole = sum(gain for _, gain in gains)
    return sum(gain for report, gain in gains if report.flagged) / whole if whole else None
