"""A benchmark's report for a terminal: fits 110 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atrex.report.terminal import PHASES, plain_table
from atrex.report.text import DASH, bar, factor, micros, plain, points, ratio
from atrex.report.workload import OperatorRow, WorkloadReport
from atrex.report.workload_text import (
    costliest,
    facts,
    lost_total,
    reasons,
    size,
    stack,
    status,
    title,
    warnings,
)
from atrex.score import CaseScore

REASONS_SHOWN = 8
STYLES = {"rejected": "bold red", "undecided": "bold magenta", "absent": "yellow", None: "yellow"}


def render_workload_terminal(report: WorkloadReport) -> RenderableType:
    """Headline, the weighted table by operator, the costliest cases, notes."""
    parts: list[RenderableType] = [Text(title(report), style="bold")]
    parts += [Text(f"! {plain(line)}", style="yellow") for line in warnings(report)]
    parts += [_facts(report), Text(), _operators(report)]
    if report.cases:
        parts += [Text(), _cases(report)]
    said = reasons(report)
    parts += [Text(f"– {plain(line, 300)}", style="yellow") for line in said[:REASONS_SHOWN]]
    if len(said) > REASONS_SHOWN:
        parts.append(
            Text(f"… and {len(said) - REASONS_SHOWN} more in the markdown and HTML reports", style="dim")
        )
    parts += [Text(f"! {plain(note)}", style="yellow") for note in report.notes]
    return Group(*parts)


def _facts(report: WorkloadReport) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in [*facts(report), ("measured with", stack(report.provenance))]:
        if value:
            grid.add_row(name, Text(value))
    return grid


def _operators(report: WorkloadReport) -> Table:
    table = plain_table(title="operators, the heaviest first")
    table.caption = Text("cases: measured/all; lost: (1 − S)·w in points of 100, share of all lost points")
    for name in ("operator", "w", "cases", "S", "A", "lost", "", "× eager", "standing"):
        right = name in ("w", "cases", "S", "A", "lost")
        table.add_column(
            name, justify="right" if right else "left", overflow="ellipsis", no_wrap=name != "standing"
        )
    table.columns[-1].overflow = "fold"
    total, weight = lost_total(report), sum(row.weight for row in report.operators) or 1.0
    top = max((row.lost for row in report.operators), default=0.0) or 1.0
    for row in report.operators:
        table.add_row(*_operator(row, total, weight), *_tail(row, top))
    return table


def _operator(row: OperatorRow, total: float, weight: float) -> list[Text]:
    whole = row.measured == row.cases
    return [
        Text(plain(row.op, 30)),
        Text(f"{row.weight:.4f}"),
        Text(f"{row.measured}/{row.cases}", style="" if whole else "bold red"),
        Text(points(row.S).removeprefix("0")),
        Text(points(row.A).removeprefix("0")),
        Text(f"{100 * row.lost / weight:.2f} {row.lost / total:4.0%}"),
    ]


def _tail(row: OperatorRow, top: float) -> list[Text]:
    return [
        Text(bar(row.lost / top, 6), style="red"),
        Text(ratio(row.vs_eager)),
        Text(plain(status(row), 120), style=STYLES.get(row.outcome, "")),
    ]


def _cases(report: WorkloadReport) -> Table:
    shown = costliest(report)
    table = plain_table(
        title=f"where the points are lost: the {len(shown)} costliest of {len(report.cases)} cases"
    )
    for name in ("case", "size", "ph", "w", "µs", "eager ×", "S", "limit", "lost"):
        right = name in ("w", "µs", "eager ×", "S", "lost")
        table.add_column(name, justify="right" if right else "left", overflow="ellipsis", no_wrap=True)
    table.columns[0].min_width = max(len(one.case.id) for one in shown)
    table.columns[1].max_width = 36
    total = lost_total(report)
    for one in shown:
        table.add_row(*_case(one), f"{one.lost / total:.1%}")
    return table


def _case(one: CaseScore) -> list[Text]:
    case, result = one.case, one.result
    row = [Text(plain(case.id, 40)), Text(size(one)), Text(PHASES[case.phase]), Text(f"{case.weight:.2g}")]
    score = Text(points(one.S).removeprefix("0"))
    if result is None or result.latency is None:
        word = "not measured" if result is None else one.standing
        return [*row, Text(word, style="bold red"), Text(DASH), score, Text()]
    gain = factor(result.vs_eager.median if result.vs_eager else None)
    limiter = Text(plain(result.bound.limiter, 6))
    return [*row, Text(micros(result.latency.median_us)), Text(gain), score, limiter]
