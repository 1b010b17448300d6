"""The report of traces as one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Iterable

from atrex.report.page import bullets, esc, grid, number, page, section
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
from traces.overview import UnplacedTime
from traces.report import CaseGap, Occupancy, OperatorGap, Reason, TraceFile, TraceReport
from traces.weights import Weight

Columns = tuple[tuple[str, str], ...]
OPERATORS: Columns = (
    ("operator", ""), ("weight", "n"), ("card-hours", "n"), ("with a bound", "n"), ("recoverable", "n"),
)  # fmt: skip
CASES: Columns = (
    ("operator", ""), ("phase", ""), ("case", ""), ("on", ""), ("weight", "n"), ("calls", "n"), ("µs", "n"),
    ("sol µs", "n"), ("attainable µs", "n"), ("limit", ""), ("card-hours", "n"), ("recoverable", "n"),
)  # fmt: skip
OCCUPANCY: Columns = (
    ("application", ""), ("devices", "n"), ("span", "n"), ("busy", "n"), ("idle", "n"),
    ("gaps between launches: number (time)", ""),
)  # fmt: skip
WITHOUT: Columns = (("operator", ""), ("weight", "n"), ("why", ""))
UNPLACED: Columns = (
    ("kernel", ""), ("launched by", ""), ("launches", "n"), ("time", "n"), ("share", "n"),
    ("the rule that would place it", ""),
)  # fmt: skip
FILES: Columns = (
    ("file", ""), ("application", ""), ("hardware", ""), ("rank", "n"), ("busy", "n"), ("sha256", ""),
)  # fmt: skip


def render_trace_html(report: TraceReport) -> str:
    """The whole page."""
    sections = [
        f"<header><h1>Where the GPU time goes</h1><p>{esc(headline(report.weights))}</p></header>",
        _tiles(report),
        section("Read first", bullets(report.notes)) if report.notes else "",
        section("By operator, phase and application", _weights(report)),
        section("Where optimising pays", _operators(report)),
        section("Gap to the roofline", grid(CASES, map(_case, report.cases)) + _legend()),
        section("Idle time and launch gaps", grid(OCCUPANCY, map(_occupancy, report.occupancy))),
        _folded("Time without a case", WITHOUT, map(_reason, report.without_case)),
        _folded("Unplaced", UNPLACED, map(_unplaced, report.unplaced)),
        _folded("Profiles", FILES, map(_file, report.files)),
    ]
    return page("where the GPU time goes", sections)


def _tiles(report: TraceReport) -> str:
    unknown = sum(row.weight for row in report.without_case)
    tiles = [
        (share(report.weights.coverage.weight), "in our operators", covered(report.weights)),
        (hours(recoverable_total(report)), "card-hours recoverable", "above the roofline"),
        (share(idle_total(report.occupancy)), "idle", "of the recorded time"),
        (share(unknown), "without a case", "of busy time, in our operators"),
        (share(sum(row.share for row in report.unplaced)), "unplaced", f"{len(report.unplaced)} kernels"),
    ]
    boxes = [
        f'<div class="tile"><b>{esc(a)}</b><span>{b}</span><span>{esc(c)}</span></div>' for a, b, c in tiles
    ]
    return f'<div class="tiles">{"".join(boxes)}</div>'


def _weights(report: TraceReport) -> str:
    names = [one.name for one in report.weights.applications]
    columns = (
        ("target", ""), ("phase", ""), ("weight", "n"), ("95 %", ""), ("of ours", "n"), ("profiles", "n"),
        *((name, "n") for name in names),
    )  # fmt: skip
    legend = (
        "weight: card-hours × share of busy time, overlap counted once; the rows add up to 100 %. "
        "Columns of applications: shares of their own busy time. Intervals: bootstrap over profiles."
    )
    rows = [_weight(row, names) for row in report.weights.rows]
    return grid(columns, rows) + f'<p class="legend">{legend}</p>'


def _weight(row: Weight, names: Iterable[str]) -> str:
    name = esc(row.target) if row.ours else f'<span class="muted">{esc(row.target)}</span>'
    thin = f'<td class="warn">{esc(interval(row))}</td>' if row.thin else f"<td>{esc(interval(row))}</td>"
    return (
        f'<td class="id">{name}</td><td>{esc(row.phase or "")}</td>'
        + number(row.weight, share(row.weight))
        + thin
        + number(row.of_ours, share(row.of_ours))
        + number(row.profiles, str(row.profiles))
        + "".join(number(row.shares.get(each), share(row.shares.get(each))) for each in names)
    )


def _operators(report: TraceReport) -> str:
    top = max((row.recoverable for row in report.operators), default=0.0) or 1.0
    return grid(OPERATORS, [_operator(row, top) for row in report.operators])


def _operator(row: OperatorGap, top: float) -> str:
    width = round(120 * row.recoverable / top)
    return (
        f'<td class="id">{esc(row.operator)}</td>'
        + number(row.weight, share(row.weight))
        + number(row.card_hours, hours(row.card_hours))
        + number(row.bounded, hours(row.bounded))
        + number(
            row.recoverable, f'<span class="bar" style="width:{width}px"></span>{hours(row.recoverable)}'
        )
    )


def _case(gap: CaseGap) -> str:
    latency, sol, attainable, limiter = bound_cells(gap)
    bound = gap.bound
    return (
        f'<td class="id">{esc(gap.operator)}</td><td>{gap.phase}</td>'
        f"<td>{esc(arguments(gap.init, gap.input, 200))}</td><td>{esc(gap.hardware)}</td>"
        + number(gap.weight, share(gap.weight))
        + number(gap.calls, f"{gap.calls:,}")
        + number(gap.latency_us, latency)
        + number(bound.sol_us if bound else None, sol)
        + number(bound.attainable_us if bound else None, attainable)
        + f"<td>{esc(limiter)}</td>"
        + number(gap.card_hours, hours(gap.card_hours))
        + number(gap.recoverable, hours(gap.recoverable))
    )


def _legend() -> str:
    return (
        '<p class="legend">µs: mean device time of a call in production. Recoverable: card-hours × (1 − '
        "bound / µs), with the attainable bound where the hardware was calibrated, else the vendor's.</p>"
    )


def _occupancy(row: Occupancy) -> str:
    return (
        f"<td>{esc(row.application)}</td>"
        + number(row.devices, str(row.devices))
        + number(row.span_us, seconds(row.span_us))
        + number(row.busy_us, seconds(row.busy_us))
        + number(row.idle, share(row.idle))
        + f"<td>{esc(pauses(row.gaps))}</td>"
    )


def _reason(row: Reason) -> str:
    weight = number(row.weight, share(row.weight))
    return f'<td class="id">{esc(row.operator)}</td>{weight}<td>{esc(row.why)}</td>'


def _unplaced(row: UnplacedTime) -> str:
    return (
        f"<td><code>{esc(row.kernel)}</code></td><td>{esc(row.operator)}</td>"
        + number(row.launches, f"{row.launches:,}")
        + number(row.busy_us, seconds(row.busy_us))
        + number(row.share, share(row.share))
        + f"<td><code>{esc(row.rule, 2000)}</code></td>"
    )


def _file(row: TraceFile) -> str:
    return (
        f"<td>{esc(row.file)}</td><td>{esc(row.application)}</td><td>{esc(row.hardware)}</td>"
        + number(row.rank, "" if row.rank is None else str(row.rank))
        + number(row.busy_us, seconds(row.busy_us))
        + f"<td><code>{esc(row.digest)}</code></td>"
    )


def _folded(title: str, columns: Columns, rows: Iterable[str]) -> str:
    """A section that opens on a click; none without rows."""
    known = list(rows)
    if not known:
        return ""
    return section(title, f"<details><summary>{len(known)}</summary>{grid(columns, known)}</details>")
