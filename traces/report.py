"""Where a fleet's GPU time goes, and where optimising pays.

Everything is a share of busy time, weighed by card-hours as in `traces.weights`. A case's gap is between its
production latency (mean device time of a call) and its roofline on the same hardware: the attainable bound
where that hardware was calibrated, else the vendor's peaks, which no kernel reaches. So

    card-hours recoverable = card-hours × share × (1 - bound / latency), never below 0

summed over an operator's cases on each hardware. Time without a case has no bound and promises nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from typing import Any, Literal

from pydantic import computed_field

from atrex.records import Bound, InitValue, Phase, Record
from traces.applications import Application, Fleet, busy_us
from traces.overview import Suggest, UnplacedTime, unplaced
from traces.placed import Placed
from traces.profile import Gaps, Profile
from traces.representatives import Caseless, Observed, Timing
from traces.weights import Weights, scale

# Hardware, operator and the arguments of a case to its roofline; None where there is none to be had.
Roofline = Callable[[str, str, Mapping[str, InitValue], Mapping[str, Any]], Bound | None]
_COMPLAINTS = 20  # lines of what could not be read that a report repeats


class Occupancy(Record):
    """How the devices of an application spent its profiles; microseconds."""

    application: str
    devices: int  # of all its profiles
    span_us: float
    busy_us: float
    gaps: tuple[Gaps, ...]  # pauses between launches, by magnitude

    @computed_field  # type: ignore[prop-decorator]
    @property
    def idle(self) -> float:
        """Share of the span in which nothing ran."""
        return max(0.0, 1 - self.busy_us / self.span_us) if self.span_us else 0.0


class CaseGap(Record):
    """One case on one hardware: what it takes, and what it has to take."""

    operator: str
    phase: Phase
    init: dict[str, InitValue]
    input: dict[str, Any]
    hardware: str  # "" if the profile names none
    weight: float  # of the fleet's busy time
    card_hours: float
    calls: int
    latency_us: float | None  # mean device time of a call; None if no call was counted
    bound: Bound | None

    @property
    def floor_us(self) -> float | None:
        """The attainable bound, or the vendor's where that is unknown."""
        if self.bound is None:
            return None
        return self.bound.sol_us if self.bound.attainable_us is None else self.bound.attainable_us

    @computed_field  # type: ignore[prop-decorator]
    @property
    def recoverable(self) -> float | None:
        """Card-hours; None without a latency or a bound."""
        if self.latency_us is None or self.floor_us is None:
            return None
        return self.card_hours * max(0.0, 1 - self.floor_us / self.latency_us)


class OperatorGap(Record):
    """One of our operators: what it costs, and what of that is above its roofline."""

    operator: str
    weight: float
    card_hours: float
    bounded: float  # card-hours of the cases that have a latency and a bound
    recoverable: float  # card-hours


class Reason(Record):
    """Time of an operator whose shape is unknown."""

    operator: str
    why: str
    weight: float


class TraceFile(Record):
    """One profile of the report."""

    file: str
    digest: str
    application: str
    hardware: str
    rank: int | None
    busy_us: float


class TraceReport(Record):
    """Everything that `atrex trace report` shows."""

    schema_version: Literal[1] = 1
    files: tuple[TraceFile, ...]
    weights: Weights
    occupancy: tuple[Occupancy, ...]
    operators: tuple[OperatorGap, ...]  # most recoverable first
    cases: tuple[CaseGap, ...]  # most recoverable first
    without_case: tuple[Reason, ...]
    unplaced: tuple[UnplacedTime, ...]
    notes: tuple[str, ...]


def build(
    fleet: Fleet,
    placed: Iterable[Placed],
    weights: Weights,
    cases: Sequence[Observed],
    without: Sequence[Caseless],
    *,
    roofline: Roofline,
    suggest: Suggest,
) -> TraceReport:
    """The report of a weighed fleet. `cases` and `without` are `representatives.observe`'s."""
    gaps = tuple(
        _gap(case, hardware, timing, fleet.card_hours, roofline)
        for case in cases
        for hardware, timing in case.timings.items()
    )
    return TraceReport(
        files=tuple(_file(one, profile) for one in fleet.applications for profile in one.profiles),
        weights=weights,
        occupancy=tuple(_occupancy(one) for one in fleet.applications),
        operators=_operators(weights, gaps),
        cases=tuple(sorted(gaps, key=_most_recoverable)),
        without_case=tuple(Reason(operator=c.operator, why=c.why, weight=c.weight) for c in without),
        unplaced=unplaced(placed, scale(fleet), suggest),
        notes=tuple(_notes(fleet, cases, gaps)),
    )


def _file(application: Application, profile: Profile) -> TraceFile:
    return TraceFile(
        file=profile.file,
        digest=profile.digest,
        application=application.name,
        hardware=profile.hardware,
        rank=profile.rank,
        busy_us=busy_us(profile),
    )


def _occupancy(one: Application) -> Occupancy:
    devices = [device for profile in one.profiles for device in profile.devices]
    gaps = defaultdict[float, list[Gaps]](list)
    for gap in (gap for device in devices for gap in device.gaps):
        gaps[gap.least_us].append(gap)
    return Occupancy(
        application=one.name,
        devices=len(devices),
        span_us=fsum(device.span_us for device in devices),
        busy_us=fsum(device.busy_us for device in devices),
        gaps=tuple(
            Gaps(
                least_us=least,
                count=sum(gap.count for gap in own),
                total_us=fsum(gap.total_us for gap in own),
            )
            for least, own in sorted(gaps.items())
        ),
    )


def _gap(case: Observed, hardware: str, timing: Timing, hours: float, roofline: Roofline) -> CaseGap:
    return CaseGap(
        operator=case.operator,
        phase=case.phase,
        init=dict(case.init),
        input=dict(case.input),
        hardware=hardware,
        weight=timing.weight,
        card_hours=timing.weight * hours,
        calls=timing.calls,
        latency_us=timing.mean_us,
        bound=roofline(hardware, case.operator, case.init, case.input) if hardware else None,
    )


def _most_recoverable(gap: CaseGap) -> tuple[float, float, str, str]:
    return (-(gap.recoverable or 0.0), -gap.weight, gap.operator, repr((gap.hardware, gap.input, gap.init)))


def _operators(weights: Weights, gaps: Sequence[CaseGap]) -> tuple[OperatorGap, ...]:
    rows = list[OperatorGap]()
    for total in weights.totals:
        if not total.ours:
            continue
        known = [gap for gap in gaps if gap.operator == total.target and gap.recoverable is not None]
        rows.append(
            OperatorGap(
                operator=total.target,
                weight=total.weight,
                card_hours=total.weight * weights.card_hours,
                bounded=fsum(gap.card_hours for gap in known),
                recoverable=fsum(gap.recoverable or 0.0 for gap in known),
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.recoverable, -row.weight, row.operator)))


def _notes(fleet: Fleet, cases: Sequence[Observed], gaps: Sequence[CaseGap]) -> Iterable[str]:
    """What a reader must know before the numbers."""
    if not fleet.stated:
        yield "no card-hours given: every file counts the same hour"
    if fleet.idle:
        yield f"without device time, and left out: {', '.join(fleet.idle)}"
    if told := fsum(case.by_count for case in cases):
        yield (
            f"{told:.2%} of the time has a case and no phase in the trace: where the operator has two, its "
            "cases count by their tokens (up to 64: decode)"
        )
    if spread := fsum(case.spread for case in cases):
        yield (
            f"{spread:.2%} of the time is of further kernels of calls at several shapes in one step: divided "
            "among these in proportion to their first kernels"
        )
    if any(not gap.hardware for gap in gaps):
        yield "a profile does not name its hardware: its cases have no bound (--gpu names it)"
    bounded = [gap for gap in gaps if gap.bound]
    for name in sorted({gap.hardware for gap in bounded if gap.bound and gap.bound.attainable_us is None}):
        yield (
            f"{name} is not calibrated here: its bounds are the vendor's peaks, which no kernel reaches, so "
            "recoverable card-hours are too high"
        )
    for name in sorted({gap.hardware for gap in gaps if gap.hardware and gap.bound is None}):
        yield f"{name}: some cases have no bound on it"
    said = [f"{profile.file}: {line}" for profile in fleet.profiles for line in profile.complaints]
    yield from said[:_COMPLAINTS]
    if len(said) > _COMPLAINTS:
        yield f"… and {len(said) - _COMPLAINTS} more complaints of the readers"
