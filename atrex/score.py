"""Scores of one candidate (or one agent) over a workload: pure functions of cases and results.

Per case S = sol / median, and 0 unless the candidate was accepted and measured. S(op) is the mean over
*all* cases of the operator by their weights, which is the plain mean where they weigh the same, as those of
Atrex-Bench do: a missing or failed case counts 0. S_agg = Σ w·S(op) / Σ w over operators. A is the same
against the attainable bound. The weight of an operator is the sum of its cases' weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any, Literal, Self, get_args

from pydantic import computed_field, model_validator

from atrex.records import Case, Cost, Phase, Ratio, Record, Result

Standing = Literal["measured", "unmeasured", "rejected", "missing"]
CONFIDENCE = 0.95


class CaseScore(Record):
    """One production case with what is known of a candidate on it."""

    case: Case
    result: Result | None = None
    cost: Cost | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_derived(cls, data: Any) -> Any:
        """Let a dumped score load again: what is derived is recomputed, whatever the file says."""
        return without(data, "standing", "S", "A", "lost")

    @model_validator(mode="after")
    def _same_case(self) -> Self:
        if self.result and (self.result.operator, self.result.case) != (self.case.operator, self.case.id):
            raise ValueError(
                f"the result is for {self.result.operator}/{self.result.case}, not {self.case.id}"
            )
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def standing(self) -> Standing:
        """Measured; accepted but not measured; rejected by a gate; or without any result."""
        if self.result is None:
            return "missing"
        if not self.result.accepted:
            return "rejected"
        return "measured" if self.result.latency else "unmeasured"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def S(self) -> float:
        """sol / median; 0 unless accepted and measured."""
        return self.result.efficiency if self.result else 0.0

    @computed_field  # type: ignore[prop-decorator]
    @property
    def A(self) -> float | None:
        """attainable / median; 0 unless accepted and measured; None where the machine is not calibrated."""
        if self.result is None:
            return 0.0
        return None if self.result.bound.attainable_us is None else self.result.attainment

    @computed_field  # type: ignore[prop-decorator]
    @property
    def lost(self) -> float:
        """Points lost here, (1 - S)·w; never negative."""
        return max(0.0, 1.0 - self.S) * self.case.weight


class Score(Record):
    """Scores over a set of cases. `weight` is Σ w of the cases; means are 0 over no case at all."""

    S: float
    A: float | None  # None: some result has no attainable bound
    weight: float
    cases: int
    missing: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()  # rejected by a gate
    unmeasured: tuple[str, ...] = ()

    @property
    def accepted(self) -> bool:
        """Every case has a result and none was rejected."""
        return self.cases > 0 and not self.missing and not self.failed


class WorkloadScore(Record):
    """The weighted aggregate over operators, and what must be read beside it.

    `coverage`: share of the weight in operators whose every case is accepted.
    `harmonic`: Σ w / Σ (w/S) over cases, see `harmonic_mean`; 0 as soon as one weighted case has S = 0.
    `harmonic_measured`: the same over the measured cases only, which hold `measured` of the weight.
    """

    S: float
    A: float | None
    phases: dict[Phase, float]  # S_agg of the cases of one phase
    coverage: float
    harmonic: float
    harmonic_measured: float | None
    measured: float
    operators: dict[str, Score]


class Saving(Record):
    """Device time that the fleet would save, projected from production latencies on the same accelerator.

    `share` = Σ w·(1 - median/production) / Σ w over the `known` share of the weight; it is negative where
    the candidate is slower than production. A case without an accepted, measured result saves nothing.
    """

    accelerator: str
    share: float
    known: float
    cases: int


def score_cases(
    cases: Iterable[Case], results: Iterable[Result], costs: Mapping[str, Cost] | None = None
) -> tuple[CaseScore, ...]:
    """One score per case, in the order of `cases`; `costs` is by case id. Other results are left out.

    Raises ValueError for two results on one case: choose one candidate first (`of_candidate`).
    """
    by_case: dict[tuple[str, str], Result] = {}
    for result in results:
        if by_case.setdefault((result.operator, result.case), result) is not result:
            raise ValueError(f"two results for case {result.case} of {result.operator}; choose one candidate")
    costs = costs or {}
    return tuple(
        CaseScore(case=case, result=by_case.get((case.operator, case.id)), cost=costs.get(case.id))
        for case in cases
    )


def of_candidate(results: Iterable[Result], candidate: str) -> list[Result]:
    """The results of one candidate."""
    return [result for result in results if result.candidate == candidate]


def score(scores: Sequence[CaseScore]) -> Score:
    """S and A as means by weight over all the given cases, with those that count 0 named."""
    named = {
        standing: tuple(one.case.id for one in scores if one.standing == standing)
        for standing in get_args(Standing)
    }
    weights = [one.case.weight for one in scores]
    known = [one.A for one in scores if one.A is not None]
    return Score(
        S=weighted_mean([one.S for one in scores], weights),
        A=weighted_mean(known, weights) if len(known) == len(scores) else None,
        weight=math.fsum(one.case.weight for one in scores),
        cases=len(scores),
        missing=named["missing"],
        failed=named["rejected"],
        unmeasured=named["unmeasured"],
    )


def score_workload(scores: Sequence[CaseScore]) -> WorkloadScore:
    """Aggregate over operators by weight, as DESIGN section 8 defines it."""
    operators = _by_operator(scores)
    weight = math.fsum(one.weight for one in operators.values())
    measured = [one for one in scores if one.standing == "measured"]
    return WorkloadScore(
        S=_weighted([(one.weight, one.S) for one in operators.values()]),
        A=_weighted_known(operators.values()),
        phases={phase: _phase(scores, phase) for phase in get_args(Phase) if _of_phase(scores, phase)},
        coverage=_share((one.weight for one in operators.values() if one.accepted), weight),
        harmonic=harmonic_mean(scores),
        harmonic_measured=harmonic_mean(measured) if measured else None,
        measured=_share((one.case.weight for one in measured), weight),
        operators=operators,
    )


def harmonic_mean(scores: Iterable[CaseScore]) -> float:
    """Σ w / Σ (w/S): sol time over actual time, if case weights are shares of time at the speed of light.

    A case that takes w units of time at its bound takes w/S in fact, so this is the factor by which the
    whole workload is away from its bound, where the mean S_agg lets a fast case hide a slow one. It is 0
    as soon as one case with weight has S = 0: such a workload does not run at all.
    """
    weighted = [(one.case.weight, one.S) for one in scores if one.case.weight > 0]
    if not weighted or any(value <= 0 for _, value in weighted):
        return 0.0
    return math.fsum(w for w, _ in weighted) / math.fsum(w / value for w, value in weighted)


def fleet_saving(scores: Sequence[CaseScore], accelerator: str) -> Saving | None:
    """Projected saving where a production latency on this accelerator is known; None where none is.

    A latency of another accelerator is never compared with.
    """
    known = [one for one in scores if one.case.production_us.get(accelerator, 0) > 0 and one.case.weight > 0]
    if not known:
        return None
    weight = math.fsum(one.case.weight for one in known)
    saved = math.fsum(one.case.weight * _saved(one, accelerator) for one in known)
    everything = math.fsum(one.case.weight for one in scores)
    return Saving(accelerator=accelerator, share=saved / weight, known=weight / everything, cases=len(known))


def _saved(one: CaseScore, accelerator: str) -> float:
    if one.result is None or one.result.latency is None:
        return 0.0
    return 1.0 - one.result.latency.median_us / one.case.production_us[accelerator]


def geometric_mean(ratios: Iterable[Ratio]) -> Ratio | None:
    """Geometric mean of per-case speed-ups with an interval at 95 %; None over no case. `n` counts cases.

    Each case's interval, divided by the normal quantile of its own confidence, gives a standard error of its
    log ratio, one for either side as these intervals are rarely symmetric. Cases are measured one after
    another and taken as independent, so the standard error of the mean log is the root of the summed squares
    over n; one case keeps its own interval. The interval speaks of measurement noise on these cases; it says
    nothing about cases that were not measured.
    """
    every = list(ratios)
    if not every:
        return None
    centre = math.fsum(math.log(ratio.median) for ratio in every) / len(every)
    below = math.hypot(*(_log_error(ratio, ratio.median, ratio.low) for ratio in every)) / len(every)
    above = math.hypot(*(_log_error(ratio, ratio.high, ratio.median) for ratio in every)) / len(every)
    z = _quantile(CONFIDENCE)
    return Ratio(
        median=math.exp(centre),
        low=math.exp(centre - z * below),
        high=math.exp(centre + z * above),
        n=len(every),
        confidence=CONFIDENCE,
    )


def _log_error(ratio: Ratio, upper: float, lower: float) -> float:
    """Standard error of the log ratio from one side of its interval."""
    return max(0.0, math.log(upper / lower)) / _quantile(ratio.confidence)


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _by_operator(scores: Iterable[CaseScore]) -> dict[str, Score]:
    groups: dict[str, list[CaseScore]] = {}
    for one in scores:
        groups.setdefault(one.case.operator, []).append(one)
    return {operator: score(group) for operator, group in groups.items()}


def _of_phase(scores: Iterable[CaseScore], phase: str) -> list[CaseScore]:
    return [one for one in scores if one.case.phase == phase]


def _phase(scores: Iterable[CaseScore], phase: str) -> float:
    return _weighted([(one.weight, one.S) for one in _by_operator(_of_phase(scores, phase)).values()])


def _weighted_known(scores: Iterable[Score]) -> float | None:
    pairs = [(one.weight, one.A) for one in scores]
    known = [(weight, a) for weight, a in pairs if a is not None]
    return _weighted(known) if len(known) == len(pairs) else None


def _weighted(pairs: Sequence[tuple[float, float]]) -> float:
    total = math.fsum(weight for weight, _ in pairs)
    return math.fsum(weight * value for weight, value in pairs) / total if total else 0.0


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """A mean by weight; the plain mean, to the last bit, where all weigh the same (or nothing)."""
    if len(set(weights)) > 1:
        return _weighted(list(zip(weights, values, strict=True)))
    return math.fsum(values) / len(values) if values else 0.0


def _share(parts: Iterable[float], whole: float) -> float:
    return math.fsum(parts) / whole if whole else 0.0


def without(data: Any, *derived: str) -> Any:
    """A dumped record without its derived fields, which loading computes anew."""
    return {k: v for k, v in data.items() if k not in derived} if isinstance(data, dict) else data
