"""Text that the reports of traces share: shares, intervals, cases and gaps as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from atrex.report.text import DASH, micros, plain
from traces.profile import Gaps
from traces.report import CaseGap, Occupancy, TraceReport
from traces.weights import Weight, Weights


def share(value: float | None) -> str:
    """A share of 1 in percent: at most two decimals, and never 0 for what is there."""
    if value is None:
        return DASH
    if 0 < value < 0.00005:
        return "<0.01%"
    return f"{value:.2%}" if value < 0.0995 else f"{value:.1%}"


def interval(weight: Weight) -> str:
    """The 95 % interval, or why there is none."""
    if weight.low is None or weight.high is None:
        return weight.thin
    return f"[{share(weight.low)}, {share(weight.high)}]" + (f" {weight.thin}" if weight.thin else "")


def hours(value: float | None) -> str:
    """Card-hours with about three digits."""
    if value is None:
        return DASH
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def seconds(us: float) -> str:
    """Microseconds as milliseconds or seconds."""
    return f"{us / 1e3:,.2f} ms" if us < 1e6 else f"{us / 1e6:,.2f} s"


def arguments(init: Mapping[str, Any], input: Mapping[str, Any], limit: int = 400) -> str:
    """A case on one line: its input, and what of its constructor's arguments the input does not hold."""
    known = {**{name: value for name, value in init.items() if name not in input}, **input}
    return plain(", ".join(f"{name}={_value(value)}" for name, value in known.items()), limit)


def _value(value: object) -> str:
    if isinstance(value, list | tuple) and all(isinstance(each, int) for each in value):
        return "×".join(str(each) for each in value)
    return str(value).replace(" ", "")


def pauses(gaps: Iterable[Gaps]) -> str:
    """Gaps between launches by magnitude: `10-100 µs: 12 (0.40 ms)`."""
    return "; ".join(
        f"{gap.least_us:g}–{gap.least_us * 10 or 1:g} µs: {gap.count:,} ({seconds(gap.total_us)})"
        for gap in gaps
    )


def headline(weights: Weights) -> str:
    """What was weighed, on one line."""
    files = sum(one.profiles for one in weights.applications)
    stated = f"{hours(weights.card_hours)} card-hours" if weights.stated else "every file the same hour"
    known = len(weights.applications) if weights.stated else 0
    of = f" of {known} application{'s' * (known != 1)}" if known else ""
    return f"{files} profile{'s' * (files != 1)}{of}, {stated}"


def covered(weights: Weights) -> str:
    """The share of our operators with its interval."""
    said = interval(weights.coverage)
    if said and weights.coverage.low is None:
        said = f"({said})"
    return f"{share(weights.coverage.weight)} {said}".strip()


def recoverable_total(report: TraceReport) -> float:
    """Card-hours of all operators."""
    return sum(row.recoverable for row in report.operators)


def idle_total(rows: Iterable[Occupancy]) -> float:
    """Idle share of all devices' spans."""
    spans = [(row.span_us, row.busy_us) for row in rows]
    span, busy = sum(each[0] for each in spans), sum(each[1] for each in spans)
    return max(0.0, 1 - busy / span) if span else 0.0


def bound_cells(gap: CaseGap) -> tuple[str, str, str, str]:
    """Latency, vendor's bound, attainable bound and limiter of a case."""
    if gap.bound is None:
        return micros(gap.latency_us), DASH, DASH, DASH
    return (
        micros(gap.latency_us),
        micros(gap.bound.sol_us),
        micros(gap.bound.attainable_us),
        gap.bound.limiter,
    )
