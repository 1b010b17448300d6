"""A benchmark's report as one self-contained HTML file."""

from __future__ import annotations

from atrex.report.page import bullets, esc, gain, grid, number, page, section
from atrex.report.plots import roofline
from atrex.report.text import DASH, duration, machine, micros, points
from atrex.report.workload import OperatorRow, WorkloadReport
from atrex.report.workload_text import (
    costliest,
    facts,
    fine,
    lost_total,
    size,
    status,
    title,
    tokens,
    unmeasured,
    warnings,
    without_measurement,
)
from atrex.score import CaseScore

COLOURS = {"rejected": "fail", "undecided": "error", "absent": "warn", "accepted": "pass"}
OPERATOR_COLUMNS = (
    ("operator", ""), ("weight", "n"), ("measured", "n"), ("cases", "n"), ("S", "n"), ("A", "n"),
    ("points lost", "n"), ("× eager", "n"), ("tokens", "n"), ("standing", ""),
)  # fmt: skip
CASE_COLUMNS = (
    ("case", ""), ("size", ""), ("phase", ""), ("weight", "n"), ("µs [p10, p90]", "n"), ("host µs", "n"),
    ("× eager", "n"), ("S", "n"), ("A", "n"), ("limit", ""), ("points lost", "n"),
)  # fmt: skip


def render_workload_html(report: WorkloadReport) -> str:
    """The whole page."""
    sections = [
        f"<header><h1>{esc(report.agent)}</h1><p>{esc(title(report))}</p></header>",
        _tiles(report),
        section("Read first", bullets([*warnings(report), *report.notes])) if _has_notes(report) else "",
        section("Operators, by lost points (1 − S)·w", _operators(report)),
        _plot(report),
        _cases(report),
        _gaps(report),
        _origin(report),
    ]
    return page(title(report), sections)


def _has_notes(report: WorkloadReport) -> bool:
    return bool(warnings(report) or report.notes)


def _tiles(report: WorkloadReport) -> str:
    total = report.score
    measured = sum(one.standing == "measured" for one in report.cases)
    tiles = [
        (fine(total.S), "S, of the vendor's roofline", f"weighted over {len(total.operators)} operators"),
        (fine(total.A), "A, of the attainable bound", "" if total.A is not None else "not calibrated"),
        *((fine(value), f"S, {phase}", "") for phase, value in total.phases.items()),
        (f"{total.coverage:.0%}", "coverage", "of the weight in accepted operators"),
        (fine(total.harmonic), "harmonic S", f"{fine(total.harmonic_measured)} over measured cases"),
        *_fast_tiles(report),
        (f"{measured}/{len(report.cases)}", "cases measured", f"in {duration(report.seconds)}"),
    ]
    boxes = [f'<div class="tile"><b>{a}</b><span>{b}</span><span>{c}</span></div>' for a, b, c in tiles]
    return f'<div class="tiles">{"".join(boxes)}</div>'


def _fast_tiles(report: WorkloadReport) -> list[tuple[str, str, str]]:
    shares = report.fast_p or ()
    return [(f"{one.cases:.0%}", f"fast_{one.p}", f"{one.weight:.0%} of the weight") for one in shares]


def _operators(report: WorkloadReport) -> str:
    total = lost_total(report)
    top = max((row.lost for row in report.operators), default=0.0) or 1.0
    return grid(OPERATOR_COLUMNS, [_operator(row, total, top) for row in report.operators])


def _operator(row: OperatorRow, total: float, top: float) -> str:
    colour = COLOURS.get(row.outcome or "", "")
    return "".join(
        [
            f'<td class="id">{esc(row.op)}</td>',
            number(row.weight, f"{row.weight:.5f}"),
            number(row.measured, str(row.measured)),
            number(row.cases, str(row.cases)),
            number(row.S, points(row.S)),
            number(row.A, points(row.A)),
            _lost(row.lost, row.lost / total, row.lost / top),
            gain(row.vs_eager),
            _tokens(row),
            f'<td class="{colour}">{esc(status(row)) or DASH}</td>',
        ]
    )


def _tokens(row: OperatorRow) -> str:
    return number(row.spent.tokens, tokens(row.spent.tokens)) if row.spent else number(None, DASH)


def _lost(value: float, share: float, length: float) -> str:
    return number(value, f'<span class="bar" style="width:{40 * length:.0f}px"></span>{share:.1%}')


def _plot(report: WorkloadReport) -> str:
    figure = roofline(report.cases)
    legend = "● measured, solid: speed of light, dashed: attainable, ✕: no measurement"
    return section("Roofline", f'{figure}<p class="legend">{legend}</p>') if figure else ""


def _cases(report: WorkloadReport) -> str:
    if not (shown := costliest(report)):
        return ""
    total, top = lost_total(report), shown[0].lost or 1.0
    rows = [_case(report, one) + _lost(one.lost, one.lost / total, one.lost / top) for one in shown]
    return section("Where the points are lost: the costliest cases", grid(CASE_COLUMNS, rows))


def _case(report: WorkloadReport, one: CaseScore) -> str:
    case, result = one.case, one.result
    latency = result.latency if result else None
    time = f'<td class="n fail" data-v="inf">{esc(unmeasured(report, one), 80)}</td>'
    if latency:
        edges = f"[{micros(latency.p10_us)}, {micros(latency.p90_us)}]"
        time = number(latency.median_us, f'{micros(latency.median_us)} <span class="range">{edges}</span>')
    host = latency.host_us if latency else None
    return "".join(
        [
            f'<td class="id">{esc(case.id)}</td><td>{esc(size(one))}</td><td>{case.phase}</td>',
            number(case.weight, f"{case.weight:.5f}"),
            time,
            number(host, micros(host)),
            gain(result.vs_eager if result else None),
            number(one.S, points(one.S)),
            number(one.A, points(one.A)),
            f"<td>{esc(result.bound.limiter) if result else DASH}</td>",
        ]
    )


def _gaps(report: WorkloadReport) -> str:
    gaps = without_measurement(report)
    if not gaps:
        return ""
    rows = [f'<td class="id">{esc(case)}</td><td>{esc(why)}</td>' for case, why in gaps]
    table = grid((("case", ""), ("why", "")), rows)
    return section("Cases without a measurement", f"<details><summary>{len(gaps)}</summary>{table}</details>")


def _origin(report: WorkloadReport) -> str:
    pairs = [*facts(report), ("command", report.command), *machine(report.provenance)]
    body = "".join(f"<dt>{esc(name)}</dt><dd>{esc(value, 2000)}</dd>" for name, value in pairs if value)
    return section("Facts and provenance", f"<dl>{body}</dl>")
