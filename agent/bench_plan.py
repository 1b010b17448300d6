"""Which cases a benchmark runs: operators, phase, an even spread, full or reduced shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from atrex.commands.common import operator_cases
from atrex.errors import UsageError
from atrex.problem import load_problem, operators, resolve_operator
from atrex.records import Case, Phase
from atrex.report.workload import Scale
from traces.workload import load_workload


@dataclass(frozen=True, slots=True)
class Selection:
    """What the command line asked for; everything that decides which cases run, and nothing else."""

    workload: str = "atrex-bench"
    ops: tuple[str, ...] = ()  # canonical names; empty: all of the workload
    cases: int | None = None  # at most so many an operator
    phase: Phase | None = None
    scale: Scale = "full"


@dataclass(frozen=True, slots=True)
class OperatorPlan:
    """One operator's cases. `problem` is False where bench/ does not have it: its cases count 0."""

    operator: str
    cases: tuple[Case, ...]
    problem: bool = True

    @property
    def weight(self) -> float:
        """Σ w of the cases."""
        return math.fsum(case.weight for case in self.cases)


def parse_ops(text: str | None) -> tuple[str, ...]:
    """Canonical names of a list such as `rmsnorm,silu-and-mul`, in its order. Raises UsageError."""
    if text is None:
        return ()
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UsageError("--ops: name at least one operator, such as rms_norm,silu_and_mul")
    return tuple(dict.fromkeys(resolve_operator(name) for name in names))


def make_plan(selection: Selection) -> tuple[OperatorPlan, ...]:
    """Operators with their chosen cases, the heaviest first, so that a short budget goes where it counts.

    Raises UsageError for an unknown operator, a bad workload, or a selection that leaves nothing.
    """
    names = load_workload(selection.workload, selection.ops or None).operators
    plans = [plan for name in names if (plan := _operator(selection, name)).cases]
    if not plans:
        raise UsageError(f"--phase {selection.phase}: no case of these operators is of that phase")
    return tuple(sorted(plans, key=lambda plan: (-plan.weight, plan.operator)))


def _operator(selection: Selection, operator: str) -> OperatorPlan:
    known = operator in operators()
    if known:
        cases = operator_cases(selection.workload, operator)
    else:
        cases = load_workload(selection.workload, [operator]).cases(operator)
    wanted = [case for case in cases if selection.phase in (None, case.phase)]
    chosen = spread(wanted, selection.cases)
    if selection.scale == "small" and known:
        chosen = tuple(load_problem(operator).small(case) for case in chosen)
    return OperatorPlan(operator, chosen, known)


def spread(cases: Sequence[Case], most: int | None) -> tuple[Case, ...]:
    """At most `most` cases, evenly over the sequence, first and last included; they carry all of its weight.

    Without that an operator with many cases would weigh less for being sampled. One case alone is the middle.
    """
    if most is None or len(cases) <= most:
        return tuple(cases)
    last = len(cases) - 1
    places = [last // 2] if most == 1 else [round(place * last / (most - 1)) for place in range(most)]
    chosen = [cases[place] for place in places]
    whole, part = (math.fsum(case.weight for case in each) for each in (cases, chosen))
    factor = whole / part if part else 1.0
    return tuple(case.model_copy(update={"weight": case.weight * factor}) for case in chosen)
