"""Several runs side by side: grouped by agent, means over seeds, differences from the first group.

Pure functions of reports. What makes runs incomparable is an error; what makes a comparison doubtful is a
note that goes with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from atrex.errors import UsageError
from atrex.fallback.records import Outcome as Origin
from atrex.records import Provenance, Record, Scalar
from atrex.report import RunReport
from atrex.report.intervals import Estimate, difference, geometric, mean_of_amounts
from atrex.report.workload import WorkloadReport
from atrex.report.workload_figures import THRESHOLDS, per_point
from atrex.score import CaseScore

GEOMETRIC = ("speedup_vs_eager", "speedup_vs_compile")  # over those runs that have one
DECISIVE = ("operator", "workload", "scale")
SETTINGS = {"per_op": "seconds an operator", "seconds": "seconds", "steps": "steps", "gates": "gates"}
SEEN_ELSEWHERE = {"workload", "scale", "cases", "phase", "ops", *SETTINGS}


@dataclass(frozen=True, slots=True)
class Asked:
    """A run as its run.json knows it."""

    name: str
    seed: int
    settings: Mapping[str, Scalar]  # budget and agent options


@dataclass(frozen=True, slots=True)
class Sample:
    """One run, reduced to what is compared. A figure or a condition is None where it is unknown."""

    agent: str
    asked: Asked
    figures: dict[str, float | None]
    operators: dict[str, tuple[float, float]]  # weight and S
    conditions: dict[str, str | None]


class Group(Record):
    """The runs of one agent. A figure is None as soon as one run does not know it, see `GEOMETRIC`."""

    agent: str
    runs: tuple[str, ...]
    seeds: tuple[int, ...]
    figures: dict[str, Estimate | None]


class Line(Record):
    """Mean S of each group, and of each group after the first its difference from the first."""

    name: str
    weight: float
    S: tuple[Estimate | None, ...]  # None: no run of the group has the operator
    differences: tuple[Estimate | None, ...]

    @property
    def importance(self) -> float:
        """Weight times the largest difference."""
        return self.weight * max((abs(one.value) for one in self.differences if one), default=0.0)


class Comparison(Record):
    """All of `atrex compare-runs`. `operators`: those that matter most first; empty for runs of one."""

    schema_version: Literal[1] = 1
    kind: Literal["comparison"] = "comparison"
    of: str  # workload or operator
    groups: tuple[Group, ...]
    total: Line
    operators: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()


def compare(runs: Sequence[tuple[Asked, RunReport | WorkloadReport]]) -> Comparison:
    """Group, average and subtract. Raises UsageError for runs that measure different things."""
    samples = _samples(runs)
    _must_agree(samples)
    groups = dict[str, list[Sample]]()
    for one in samples:
        groups.setdefault(one.agent, []).append(one)
    sides = list(groups.values())
    names = {name: one.operators[name][0] for one in reversed(samples) for name in one.operators}
    lines = [_line(name, names[name], sides) for name in sorted(names)]
    lines.sort(key=lambda line: (-line.importance, -line.weight))
    total = _total(sides, sum(names.values()))
    return Comparison(
        of=samples[0].conditions["operator"] or samples[0].conditions["workload"] or "",
        groups=tuple(_group(agent, group) for agent, group in groups.items()),
        total=total,
        operators=tuple(lines),
        notes=(*_unlike(samples), *(note for side in sides for note in _doubts(side))),
    )


def _samples(runs: Sequence[tuple[Asked, RunReport | WorkloadReport]]) -> list[Sample]:
    benches = [_of_bench(asked, report) for asked, report in runs if isinstance(report, WorkloadReport)]
    searches = [_of_search(asked, report) for asked, report in runs if isinstance(report, RunReport)]
    if benches and searches:
        raise UsageError(
            f"{benches[0].asked.name} is a benchmark and {searches[0].asked.name} an optimisation of one "
            "operator: compare runs of one kind"
        )
    return benches or searches


def _of_bench(asked: Asked, report: WorkloadReport) -> Sample:
    spent, fast = report.spent, {one.p: one for one in report.fast_p or ()}
    figures: dict[str, float | None] = {"S": report.S, "A": report.A}
    figures |= {f"S_{phase}": report.phases.get(phase) for phase in ("prefill", "decode")}
    figures["coverage"] = report.coverage
    figures["own_kernels"] = report.fallbacks.get(Origin.KERNEL, 0.0) if report.fallbacks else None
    for p in THRESHOLDS:
        figures[f"fast_{p}"] = fast[p].cases if p in fast else None
        figures[f"fast_{p}_weighted"] = fast[p].weight if p in fast else None
    figures |= {
        "tokens": spent.tokens if spent else None,
        "dollars": spent.dollars if spent else None,
        "tokens_per_point": report.tokens_per_point,
        "dollars_per_point": report.dollars_per_point,
        "time_s": report.seconds,
    }
    limit = report.cases_per_operator
    conditions = {
        "operator": None,
        "workload": report.workload,
        "scale": report.scale,
        "phase": report.phase or "both",
        "cases an operator": "all" if limit is None else str(limit),
        **_conditions(asked, report.device, report.cases, report.provenance),
    }
    rows = {row.op: (row.weight, row.S) for row in report.operators}
    return Sample(report.agent, asked, figures, rows, conditions)


def _of_search(asked: Asked, report: RunReport) -> Sample:
    spent, workload = report.spent, asked.settings.get("workload")
    eager, compiled = report.speedup_vs_eager, report.speedup_vs_compile
    figures: dict[str, float | None] = {
        "S": report.S,
        "A": report.A,
        "accepted": float(report.accepted),
        "speedup_vs_eager": eager.median if eager else None,
        "speedup_vs_compile": compiled.median if compiled else None,
        "tokens": spent.tokens if spent else None,
        "dollars": spent.dollars if spent else None,
        "tokens_per_point": per_point(spent.tokens if spent else None, report.S),
        "dollars_per_point": per_point(spent.dollars if spent else None, report.S),
        "time_s": report.seconds,
    }
    conditions = {
        "operator": report.op,
        "workload": None if workload is None else str(workload),
        "scale": None,
        **_conditions(asked, report.device, report.cases, report.provenance),
    }
    agent = report.agent or str(asked.settings.get("agent") or "agent unknown")
    return Sample(agent, asked, figures, {}, conditions)


def _conditions(
    asked: Asked, device: str, cases: Sequence[CaseScore], origin: Provenance | None
) -> dict[str, str | None]:
    ids = sorted(one.case.id for one in cases)
    mark = hashlib.sha256("\n".join(ids).encode()).hexdigest()[:6]
    settings = {word: asked.settings.get(name) for name, word in SETTINGS.items()}
    return {
        "device": device,
        "hardware": origin.hardware if origin else None,
        "policy": ", ".join(sorted({one.result.policy for one in cases if one.result})) or None,
        "cases": f"{len(ids)} ({mark})",
        "harness": origin.harness if origin else None,
        "torch": origin.torch if origin else None,
        **{word: None if value is None else str(value) for word, value in settings.items()},
    }


def _must_agree(samples: Sequence[Sample]) -> None:
    for name in DECISIVE:
        found = _values(samples, name)
        if len(found) > 1:
            (one, first), (other, second) = list(found.items())[:2]
            raise UsageError(
                f"not comparable: {name} {one} in {first[0].asked.name}, {other} in {second[0].asked.name}"
            )


def _unlike(samples: Sequence[Sample]) -> list[str]:
    """A note for each condition that is not the same for all."""
    names = [name for name in samples[0].conditions if name not in DECISIVE]
    unlike = {name: found for name in names if len(found := _values(samples, name)) > 1}
    return [
        f"not measured alike: {name} " + "; ".join(f"{v} in {_runs(of)}" for v, of in found.items())
        for name, found in unlike.items()
    ]


def _values(samples: Iterable[Sample], condition: str) -> dict[str, list[Sample]]:
    """Samples by what they say of a condition; those that do not know are left out."""
    found = dict[str, list[Sample]]()
    for one in samples:
        if (value := one.conditions[condition]) is not None:
            found.setdefault(value, []).append(one)
    return found


def _runs(samples: Sequence[Sample]) -> str:
    return samples[0].asked.name + (f" and {len(samples) - 1} more" if len(samples) > 1 else "")


def _doubts(side: Sequence[Sample]) -> list[str]:
    """What speaks against taking one agent's runs for independent runs of the same thing."""
    agent, seeds = side[0].agent, [one.asked.seed for one in side]
    notes = [f"{agent}: one run, so no interval over seeds"] if len(side) == 1 else []
    notes += [
        f"{agent}: {seeds.count(seed)} runs have seed {seed}; the interval is of runs, not of seeds"
        for seed in sorted({seed for seed in seeds if seeds.count(seed) > 1})
    ]
    keys = {key for one in side for key in one.asked.settings} - SEEN_ELSEWHERE
    for key in sorted(keys):
        values = list(dict.fromkeys(str(one.asked.settings.get(key)) for one in side))
        if len(values) > 1:
            notes.append(f"{agent}: its runs differ in {key}: {', '.join(values)}")
    return notes


def _group(agent: str, side: Sequence[Sample]) -> Group:
    return Group(
        agent=agent,
        runs=tuple(one.asked.name for one in side),
        seeds=tuple(one.asked.seed for one in side),
        figures={name: _figure(name, side) for name in side[0].figures},
    )


def _figure(name: str, side: Sequence[Sample]) -> Estimate | None:
    values = [one.figures[name] for one in side]
    known = [value for value in values if value is not None]
    if name in GEOMETRIC:
        return geometric(known) if known else None
    return mean_of_amounts(known) if len(known) == len(values) else None


def _total(sides: Sequence[Sequence[Sample]], weight: float) -> Line:
    return _means("all", weight, [[one.figures["S"] or 0.0 for one in side] for side in sides])


def _line(name: str, weight: float, sides: Sequence[Sequence[Sample]]) -> Line:
    held = [[one.operators[name][1] for one in side if name in one.operators] for side in sides]
    return _means(name, weight, held)


def _means(name: str, weight: float, sides: Sequence[Sequence[float]]) -> Line:
    first, *others = sides
    return Line(
        name=name,
        weight=weight,
        S=tuple(mean_of_amounts(side) if side else None for side in sides),
        differences=tuple(difference(first, side) if first and side else None for side in others),
    )
