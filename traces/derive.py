"""The workload that profiles make: weights and representative cases in the form that every command takes.

    workload = derive(weights, reductions, name="fleet", provenance=provenance(fleet, …))
    write_workload(workload, path)

A workload file holds one weight an operator. The `share` of a case is that of its group, with its part of
what was dropped in its phase; so time whose shape is unknown is divided in the same proportion. `call_count`
is the number of calls of the group, `production_us` the mean device time of a call at exactly the case's
shape, by hardware.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import date
from math import fsum
from typing import cast, get_args

from atrex.errors import UsageError
from atrex.records import Phase
from traces.applications import Fleet
from traces.representatives import Observed, Reduction, Representative
from traces.weights import Weights
from traces.workload import OperatorWorkload, Workload, WorkloadCase

_APPLICATIONS_SHOWN = 3


def derive(weights: Weights, reductions: Iterable[Reduction], *, name: str, provenance: str) -> Workload:
    """The workload of all operators with a case, the heaviest first.

    Raises UsageError if there is none: an operator without a known shape cannot be worked on.
    """
    by_operator = defaultdict[str, list[Reduction]](list)
    for one in reductions:
        by_operator[one.operator].append(one)
    operators = {
        row.target: _operator(row.weight, by_operator[row.target])
        for row in weights.totals
        if row.target in by_operator and row.weight > 0
    }
    if not operators:
        raise UsageError(
            "no operator has a case with device time: record shapes (record_shapes=True), and see "
            "`atrex trace show` for what was found"
        )
    return Workload(name=name, provenance=provenance, operators=operators)


def without_cases(weights: Weights, reductions: Iterable[Reduction]) -> tuple[str, ...]:
    """Operators that have a weight and no case, and so no place in the workload; the heaviest first."""
    known = {one.operator for one in reductions}
    return tuple(row.target for row in weights.totals if row.ours and row.target not in known)


def _operator(weight: float, reductions: Sequence[Reduction]) -> OperatorWorkload:
    phases = tuple(phase for phase in cast(tuple[Phase, ...], get_args(Phase)) if _has(reductions, phase))
    every = [one for phase in phases for part in reductions if part.phase == phase
             for one in part.representatives]  # fmt: skip
    chosen = [one for one in every if one.scaled > 0] or every  # a launch may have taken no time at all
    whole = fsum(one.scaled for one in chosen)
    cases = [_case(shape, one, whole, both=len(phases) > 1) for shape, one in enumerate(chosen)]
    return OperatorWorkload(weight=weight, phases=phases, cases=tuple(cases))


def _has(reductions: Sequence[Reduction], phase: Phase) -> bool:
    return any(one.phase == phase for one in reductions)


def _case(shape: int, one: Representative, whole: float, *, both: bool) -> WorkloadCase:
    return WorkloadCase(
        shape=shape,
        init=dict(one.case.init),
        input=dict(one.case.input),
        share=float(f"{one.scaled / whole:.6g}") if whole else None,
        phase=one.case.phase if both else None,
        seen_in=_seen_in(one.case),
        call_count=one.calls or None,
        production_us={name: float(f"{mean:.6g}") for name, mean in one.case.mean_us.items() if name},
    )


def _seen_in(case: Observed) -> str:
    shown = ", ".join(case.applications[:_APPLICATIONS_SHOWN])
    more = len(case.applications) - _APPLICATIONS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown


def provenance(fleet: Fleet, *, rules: str, keep: float, seed: int, version: str, day: date) -> str:
    """Where a derived workload comes from, on one line: files with digests, card-hours, rules, date."""
    hours = ", ".join(f"{one.name} {one.card_hours:g}" for one in fleet.applications)
    stated = f"card-hours: {hours}" if fleet.stated else "no card-hours given: every file counts the same"
    files = ", ".join(f"{one.file} (sha256 {one.digest})" for one in fleet.profiles)
    made = f"atrex {version} trace weights, {day.isoformat()}"
    return f"{made}; {stated}; rules sha256 {rules}; keep {keep:g}, seed {seed}; profiles: {files}"
