"""Traces for a terminal: what was read, where the time goes, the weights, two workloads, the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from atrex.report.terminal import plain_table
from atrex.report.text import bar, factor, plain
from atrex.report.trace_text import (
    arguments,
    bound_cells,
    covered,
    headline,
    hours,
    idle_total,
    interval,
    pauses,
    recoverable_total,
    seconds,
    share,
)
from traces.compare import SideBySide
from traces.overview import Overview, UnplacedTime
from traces.profile import Profile
from traces.report import TraceReport
from traces.representatives import Caseless, Reduction
from traces.weights import Weight, Weights

APPLICATIONS_SHOWN = 4
CASES_SHOWN = 15
ROWS_SHOWN = 15


def render_profiles(profiles: Sequence[Profile]) -> RenderableType:
    """What was read, a file a line."""
    columns = ("file", "format", "hardware", ">rank", ">devices", ">entries", ">launches", ">busy", ">idle")
    table = _table("profiles", columns)
    for one in profiles:
        span = sum(device.span_us for device in one.devices)
        idle = share(max(0.0, 1 - one.busy_us / span)) if span else ""
        launches = f"{sum(entry.launches for entry in one.entries):,}"
        rank = "" if one.rank is None else str(one.rank)
        _row(table, one.file, one.format, one.hardware, rank, str(len(one.devices)),
             str(len(one.entries)), launches, seconds(one.busy_us), idle)  # fmt: skip
    return table


def render_overview(found: Overview, *, only_unplaced: bool = False) -> RenderableType:
    """Time by target and phase, then what no rule knows."""
    count = len(found.unplaced)
    files = f"{found.profiles} profile{'s' * (found.profiles != 1)}"
    title = Text(f"{files}, {seconds(found.busy_us)} busy ", style="bold")
    title.append(f"({seconds(found.device_us)} of launches), {share(found.covered)} in our operators")
    rest = [_unplaced(found.unplaced, count)] if count else [Text("everything is placed", style="green")]
    if only_unplaced:
        return Group(title, *rest)
    columns = ("target", "phase", ">busy", ">share", ">launches", ">calls", ">cases", ">without a case")
    table = _table(None, columns, caption="dim: outside our operators")
    for row in found.targets:
        without = share(row.without_case_us / row.busy_us) if row.ours and row.busy_us else ""
        own = (str(row.calls), str(row.cases)) if row.ours else ("", "")
        _row(table, row.target, row.phase, seconds(row.busy_us), share(row.share), f"{row.launches:,}",
             *own, without, style="" if row.ours else "dim")  # fmt: skip
    return Group(title, table, Text(), *rest)


def render_weights(
    weights: Weights, reductions: Sequence[Reduction], without: Sequence[Caseless]
) -> RenderableType:
    """Weights by target and phase with intervals, and how many shapes stand for them."""
    title = Text(f"{headline(weights)}; our operators: {covered(weights)}", style="bold")
    parts: list[RenderableType] = [title, _weights(weights), Text(), _reductions(reductions)]
    return Group(*parts, *_without([(one.operator, one.why, one.weight) for one in without]))


def _weights(weights: Weights) -> Table:
    names = [one.name for one in weights.applications] if weights.stated else []
    shown = [f">{plain(name, 16)}" for name in names[:APPLICATIONS_SHOWN]]
    columns = ("target", "phase", ">weight", "95 %", ">of ours", ">profiles", *shown)
    caption = "weight: card-hours × share of busy time; all rows add up to 100 %; dim: outside our operators"
    if len(names) > APPLICATIONS_SHOWN:
        caption += f"; {len(names) - APPLICATIONS_SHOWN} more applications in --json and --html"
    table = _table("where the GPU time goes", columns, caption=caption)
    for row in weights.rows:
        _row(table, *_weight(row, names[:APPLICATIONS_SHOWN]), style="" if row.ours else "dim")
    return table


def _weight(row: Weight, names: Iterable[str]) -> list[str]:
    known = share(row.of_ours) if row.ours else ""
    cells = [row.target, row.phase or "", share(row.weight), interval(row), known, str(row.profiles)]
    return [*cells, *(share(row.shares.get(name)) for name in names)]


def _reductions(reductions: Sequence[Reduction]) -> Table:
    columns = ("operator", "phase", ">shapes seen", ">kept", ">of its time", "the heaviest")
    table = _table("representative shapes", columns)
    for one in sorted(reductions, key=lambda each: -each.weight):
        first = one.representatives[0].case
        cells = (str(one.cases), str(len(one.representatives)), share(one.kept))
        _row(table, one.operator, one.phase, *cells, arguments(first.init, first.input, 90))
    return table


def render_side_by_side(found: SideBySide) -> RenderableType:
    """Two workloads, operator by operator."""
    names = [f">{plain(name, 20)}" for name in (found.first, found.second)]
    title = f"{plain(found.first)} beside {plain(found.second)}"
    caption = "weights over the operators of each; shapes: first/second"
    table = _table(title, ("operator", "phase", *names, ">ratio", ">shapes", ">in common"), caption)
    for pair in found.operators:
        first, second = pair.weights
        shapes = f"{pair.first_cases}/{pair.second_cases}"
        _row(table, pair.operator, "", share(first), share(second), factor(pair.ratio), shapes,
             str(pair.common))  # fmt: skip
        phases = sorted({*pair.first, *pair.second})
        for phase in phases if len(phases) > 1 else []:
            one, other = pair.first.get(phase, 0.0), pair.second.get(phase, 0.0)
            ratio = factor(one / other) if other else factor(None)
            _row(table, "", phase, share(one), share(other), ratio, "", "", style="dim")
    rank = found.rank_correlation
    said = "too few operators to rank" if rank is None else f"rank correlation (Spearman) {rank:.2f}"
    return Group(table, Text(said))


def render_trace_report(report: TraceReport) -> RenderableType:
    """The whole report."""
    weights = report.weights
    title = Text(f"{headline(weights)}; our operators: {covered(weights)}", style="bold")
    parts: list[RenderableType] = [title, *_warnings(report.notes), _weights(weights), Text()]
    parts += [_occupancy(report), Text(), _operators(report), Text(), _cases(report)]
    parts += _without([(one.operator, one.why, one.weight) for one in report.without_case])
    if report.unplaced:
        parts += [Text(), _unplaced(report.unplaced, ROWS_SHOWN)]
    return Group(*parts)


def _occupancy(report: TraceReport) -> Table:
    columns = ("application", ">devices", ">span", ">idle", "gaps between launches: number (time)")
    table = _table(f"idle: {share(idle_total(report.occupancy))} of the recorded time", columns)
    for row in report.occupancy:
        cells = (str(row.devices), seconds(row.span_us), share(row.idle), pauses(row.gaps))
        _row(table, row.application, *cells)
    return table


def _operators(report: TraceReport) -> Table:
    columns = ("operator", ">weight", ">card-hours", ">with a bound", ">recoverable", "")
    title = f"where optimising pays: {hours(recoverable_total(report))} card-hours above the roofline"
    table = _table(title, columns, caption="recoverable: card-hours × (1 − bound / latency) over its cases")
    top = max((row.recoverable for row in report.operators), default=0.0) or 1.0
    for row in report.operators:
        cells = (share(row.weight), hours(row.card_hours), hours(row.bounded), hours(row.recoverable))
        _row(table, row.operator, *cells, bar(row.recoverable / top, 12))
    return table


def _cases(report: TraceReport) -> Table:
    shown = report.cases[:CASES_SHOWN]
    columns = (
        "operator",
        "ph",
        "case",
        "on",
        ">weight",
        ">µs",
        ">sol",
        ">attainable",
        "limit",
        ">recoverable",
    )
    title = f"gap to the roofline: {len(shown)} of {len(report.cases)} cases, the most recoverable first"
    table = _table(title, columns, caption="µs: mean device time of a call in production")
    for gap in shown:
        case = arguments(gap.init, gap.input, 60)
        cells = (share(gap.weight), *bound_cells(gap), hours(gap.recoverable))
        _row(table, gap.operator, gap.phase[:3], case, gap.hardware, *cells)
    return table


def _without(rows: Sequence[tuple[str, str, float]]) -> list[RenderableType]:
    if not rows:
        return []
    columns = ("operator", ">weight", "why")
    title = f"time without a case: {share(sum(row[2] for row in rows))}; it counts in the weights"
    table = _table(title, columns)
    for operator, why, weight in rows[:ROWS_SHOWN]:
        _row(table, operator, share(weight), why)
    return [Text(), table, *_more(len(rows))]


def _unplaced(rows: Sequence[UnplacedTime], count: int) -> RenderableType:
    columns = ("kernel", "launched by", ">launches", ">time", ">share")
    title = f"unplaced: {share(sum(row.share for row in rows))}, in {len(rows)} kernels"
    table = _table(title, columns)
    for row in rows[:count]:
        cells = (f"{row.launches:,}", seconds(row.busy_us), share(row.share))
        _row(table, plain(row.kernel, 100), row.operator, *cells)
    rules = [Text("the rules that would place them:"), *_as_yaml(rows[:count])] if rows else []
    return Group(table, *_more(len(rows), count), *rules)


def _as_yaml(rows: Sequence[UnplacedTime]) -> Iterator[Text]:
    """Rules as they stand in a file: whole lines, to be copied."""
    for row in rows:
        for line in row.rule.splitlines():
            indent = len(line) - len(line.lstrip())
            yield Text(" " * indent + plain(line), no_wrap=True, overflow="ignore")


def _more(total: int, shown: int = ROWS_SHOWN) -> list[Text]:
    return [Text(f"… and {total - shown} more", style="dim")] if total > shown else []


def _warnings(lines: Iterable[str]) -> list[Text]:
    return [Text(f"! {plain(line)}", style="yellow") for line in lines]


def _table(title: str | None, columns: Iterable[str], caption: str | None = None) -> Table:
    """A table; the names of columns of numbers begin with `>`."""
    table = plain_table(title=title and escape(title), caption=caption)
    for name in columns:
        head, right = Text(name.removeprefix(">")), name.startswith(">")
        whole = name == "file"  # in one piece: it is what one searches for
        table.add_column(head, justify="right" if right else "left", overflow="fold", no_wrap=whole)
    return table


def _row(table: Table, *cells: str, style: str = "") -> None:
    table.add_row(*(Text(plain(cell)) for cell in cells), style=style)
