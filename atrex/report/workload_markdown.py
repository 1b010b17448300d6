"""A benchmark's report as GitHub markdown."""

from __future__ import annotations

from atrex.report.markdown import code, escape, table
from atrex.report.text import DASH, machine, micros, points, ratio, spread
from atrex.report.workload import OperatorRow, WorkloadReport
from atrex.report.workload_text import (
    costliest,
    facts,
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

OPERATOR_COLUMNS = (
    "operator",
    "w",
    "cases",
    "S",
    "A",
    "lost (1 − S)·w",
    "of all lost",
    "× eager",
    "tokens",
    "standing",
)
CASE_COLUMNS = ("case", "size", "phase", "w", "µs [p10,p90]", "host µs", "× eager", "S", "A", "limit", "lost")


def render_workload_markdown(report: WorkloadReport) -> str:
    """The whole report."""
    parts = [f"# {escape(title(report))}"]
    if said := warnings(report):
        parts.append("\n".join(f"- **{escape(line)}**" for line in said))
    pairs = [(escape(name), escape(value)) for name, value in facts(report)]
    parts.append(table(("", ""), [*pairs, ("command", code(report.command))]))
    total = lost_total(report)
    parts += ["## Operators", table(OPERATOR_COLUMNS, [_operator(row, total) for row in report.operators])]
    if report.cases:
        rows = [[*_case(report, one), f"{one.lost / total:.1%}"] for one in costliest(report)]
        parts += ["## Where the points are lost: the costliest cases", table(CASE_COLUMNS, rows)]
    if gaps := without_measurement(report):
        rows = [[escape(case), escape(why)] for case, why in gaps]
        parts += ["## Cases without a measurement", table(("case", "why"), rows)]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {escape(note)}" for note in report.notes)]
    if report.provenance:
        origin = [(escape(name), escape(value)) for name, value in machine(report.provenance)]
        parts += ["## Provenance", table(("", ""), origin)]
    return "\n\n".join(parts) + "\n"


def _operator(row: OperatorRow, total: float) -> list[str]:
    return [
        escape(row.op),
        f"{row.weight:.5f}",
        f"{row.measured}/{row.cases}",
        points(row.S),
        points(row.A),
        f"{row.lost:.5f}",
        f"{row.lost / total:.1%}",
        ratio(row.vs_eager),
        tokens(row.spent.tokens) if row.spent else DASH,
        escape(status(row)) or DASH,
    ]


def _case(report: WorkloadReport, one: CaseScore) -> list[str]:
    result = one.result
    latency = result.latency if result else None
    return [
        escape(one.case.id),
        escape(size(one)),
        one.case.phase,
        f"{one.case.weight:.5f}",
        spread(latency) if latency else f"**{escape(unmeasured(report, one))}**",
        micros(latency.host_us if latency else None),
        ratio(result.vs_eager if result else None),
        points(one.S),
        points(one.A),
        escape(result.bound.limiter) if result else DASH,
    ]
