"""Two workloads side by side: weights by operator and phase, their ratio, rank correlation, common shapes.

Weights are divided by their sum over the operators of each workload, so that workloads of any coverage can
be held beside each other (Atrex-Bench's own sum to 1.09).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import fsum
from typing import Any, Literal

import numpy as np

from atrex.records import InitValue, Record
from traces.placed import PlacedPhase
from traces.representatives import identity
from traces.weights import Weights
from traces.workload import Workload

Split = Mapping[str, Mapping[PlacedPhase, float]]  # weight by operator and phase
Identify = Callable[[str, Mapping[str, InitValue], Mapping[str, Any]], str]


class OperatorPair(Record):
    """One operator in both workloads; the weights of each add up to 1 over its operators."""

    operator: str
    first: dict[PlacedPhase, float]
    second: dict[PlacedPhase, float]
    first_cases: int
    second_cases: int
    common: int  # shapes that both have

    @property
    def weights(self) -> tuple[float, float]:
        """Over all phases."""
        return fsum(self.first.values()), fsum(self.second.values())

    @property
    def ratio(self) -> float | None:
        """First weight over the second; None if the second has none."""
        first, second = self.weights
        return first / second if second else None


class SideBySide(Record):
    """Two workloads, operator by operator, the heaviest in either first."""

    schema_version: Literal[1] = 1
    first: str
    second: str
    operators: tuple[OperatorPair, ...]
    rank_correlation: float | None  # Spearman's, over operators of either; None for fewer than three


def split_of(workload: Workload) -> Split:
    """Weights of a workload by operator and phase; its cases share their operator's weight equally."""
    found = dict[str, dict[PlacedPhase, float]]()
    for operator in workload.operators:
        parts = defaultdict[PlacedPhase, list[float]](list)
        for case in workload.cases(operator):
            parts[case.phase].append(case.weight)
        found[operator] = {phase: fsum(weights) for phase, weights in parts.items()}
    return found


def split_of_weights(weights: Weights) -> Split:
    """The same of what was weighed, whether or not its cases are known."""
    found = defaultdict[str, dict[PlacedPhase, float]](dict)
    for row in weights.rows:
        if row.ours and row.phase is not None:
            found[row.target][row.phase] = row.weight
    return found


def side_by_side(
    first: Workload,
    second: Workload,
    *,
    first_split: Split | None = None,
    identify: Identify = lambda operator, init, input: identity(init, input),
) -> SideBySide:
    """Compare two workloads.

    `first_split` replaces what the first workload's equal cases say of its phases. `identify` names a shape;
    two are the same if their names are.
    """
    ours, theirs = _shares(first_split or split_of(first)), _shares(split_of(second))
    pairs = [
        _pair(operator, ours.get(operator, {}), theirs.get(operator, {}), first, second, identify)
        for operator in sorted({*ours, *theirs})
    ]
    pairs.sort(key=lambda pair: (-max(pair.weights), pair.operator))
    return SideBySide(
        first=first.name,
        second=second.name,
        operators=tuple(pairs),
        rank_correlation=spearman([p.weights[0] for p in pairs], [p.weights[1] for p in pairs]),
    )


def _shares(split: Split) -> Split:
    whole = fsum(weight for phases in split.values() for weight in phases.values())
    return {
        operator: {phase: weight / whole for phase, weight in phases.items()}
        for operator, phases in split.items()
    }


def _pair(
    operator: str,
    ours: Mapping[PlacedPhase, float],
    theirs: Mapping[PlacedPhase, float],
    first: Workload,
    second: Workload,
    identify: Identify,
) -> OperatorPair:
    mine, other = _shapes(first, operator, identify), _shapes(second, operator, identify)
    return OperatorPair(
        operator=operator,
        first=dict(ours),
        second=dict(theirs),
        first_cases=len(mine),
        second_cases=len(other),
        common=len(mine & other),
    )


def _shapes(workload: Workload, operator: str, identify: Identify) -> set[str]:
    if operator not in workload.operators:
        return set()
    return {identify(operator, case.init, case.input) for case in workload.operators[operator].cases}


def spearman(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's rank correlation: Pearson's of the ranks, ties sharing their mean rank.

    None for fewer than three values, or where all of one side are tied.
    """
    if len(first) < 3:
        return None
    x, y = _ranks(first), _ranks(second)
    spread = float(np.sqrt((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / spread if spread else None


def _ranks(values: Sequence[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Ranks less their mean."""
    _, place, size = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(size) - (size - 1) / 2)[place]
    return np.asarray(ranks - ranks.mean(), dtype=np.float64)
