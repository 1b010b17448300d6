"""An audit's report: on the terminal, as one HTML page, as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from atrex.foreign.rates import Row, Share, Summary, disagrees
from atrex.records import Record, Witness
from atrex.report.page import esc, grid, page, section
from atrex.report.terminal import plain_table

_STATES = ("accepted", "rejected", "undecided", "unusable")
_STYLES = {"accepted": "pass", "rejected": "fail", "undecided": "warn", "unusable": "muted"}
_LISTED = 40  # rows on a terminal; the other forms have all


class AuditReport(Record):
    """The whole of an audit."""

    schema_version: int = 1
    format: str
    directory: str
    device: str
    level: str
    run: str
    summary: Summary
    rows: tuple[Row, ...]


def rates(summary: Summary) -> list[tuple[str, Share]]:
    """The headline rates."""
    return [
        ("any tolerance-free gate failed", summary.tolerance_free),
        ("… authenticity left out", summary.tolerance_free_without_authenticity),
        ("any gate failed", summary.any_gate),
    ]


def shown(value: Share) -> str:
    """A share in words."""
    if not value.n:
        return "nothing was judged"
    interval = f"[{100 * value.low:.1f}, {100 * value.high:.1f}]"
    return f"{100 * value.value:.1f} %  {interval}  ({value.k} of {value.n})"


def terminal(report: AuditReport) -> RenderableType:
    """Rates, confusion and the disagreements with their witnesses."""
    summary = report.summary
    states = ", ".join(f"{summary.states.get(state, 0)} {state}" for state in _STATES)  # type: ignore[call-overload]
    parts: list[RenderableType] = [
        Text(f"{report.format}: {summary.kernels} kernels, {states}  ({report.level} level, {report.device})")
    ]
    table = plain_table("rates over what could be judged, with 95 % intervals (Wilson)")
    for name in ("rate", "share"):
        table.add_column(name)
    for name, value in rates(summary):
        table.add_row(name, shown(value))
    for gate, count in summary.gates.items():
        table.add_row(f"{gate} failed", str(count))
    if summary.harness:
        table.add_row("the harness failed", f"{len(summary.harness)} ({', '.join(summary.harness[:3])} …)")
    parts.append(table)
    if summary.confusion.labelled:
        confusion = plain_table("the source's labels against the gates")
        for name in ("label", *_STATES):
            confusion.add_column(name)
        for label, counts in summary.confusion.counts.items():
            confusion.add_row(label, *(str(counts.get(state, 0)) for state in _STATES))  # type: ignore[call-overload]
        parts.append(confusion)
    contrary = [row for row in report.rows if disagrees(row)]
    if contrary:
        parts.append(_listing("label and gates disagree", contrary))
    reasons = [row for row in report.rows if row.state in ("undecided", "unusable")]
    if reasons:
        parts.append(_listing("not decided", reasons))
    return Group(*parts)


def _listing(title: str, rows: Sequence[Row]) -> RenderableType:
    table = plain_table(title)
    for name in ("kernel", "label", "state", "why"):
        table.add_column(name, overflow="fold")
    for row in rows[:_LISTED]:
        witness = _witness(row)
        why = f"{row.reason}\n{witness.command}" if witness and disagrees(row) else row.reason
        table.add_row(*(Text(cell) for cell in (row.id, _label(row), row.state, why)))
    if len(rows) > _LISTED:
        table.add_row("…", "", "", f"{len(rows) - _LISTED} more: see --json or --html")
    return table


def _witness(row: Row) -> Witness | None:
    return next((verdict.witness for verdict in row.failures if verdict.witness), None)


def _label(row: Row) -> str:
    return {True: "right", False: "wrong", None: ""}[row.label]


def html(report: AuditReport) -> str:
    """One page with everything."""
    summary = report.summary
    tiles = "".join(
        f'<div class="tile"><b>{esc(f"{100 * v.value:.1f} %" if v.n else "–")}</b><span>{esc(name)}</span>'
        f"<span>{esc(shown(v))}</span></div>"
        for name, v in rates(summary)
    )
    about = f"{report.directory}: {summary.kernels} kernels, {report.level} level, {report.device}"
    about += f"; the harness failed on {len(summary.harness)}" if summary.harness else ""
    sections = [f"<header><h1>Audit of {esc(report.format)}</h1><p>{esc(about)}</p></header>"]
    sections.append(f'<div class="tiles">{tiles}</div>')
    gates = (f"<td>{esc(gate)}</td><td>{count}</td>" for gate, count in summary.gates.items())
    sections.append(section("Kernels that each gate rejects", grid([("gate", ""), ("kernels", "n")], gates)))
    if summary.confusion.labelled:
        columns = [("label", ""), *((state, "n") for state in _STATES)]
        sections.append(section("The source's labels against the gates", grid(columns, _confusion(summary))))
    contrary = [row for row in report.rows if disagrees(row)]
    if contrary:
        sections.append(section("Label and gates disagree", _rows(contrary)))
    sections.append(section("All kernels", _rows(report.rows)))
    return page(f"audit of {report.format}", sections)


def _confusion(summary: Summary) -> Iterator[str]:
    for label, counts in summary.confusion.counts.items():
        cells = "".join(f"<td>{counts.get(state, 0)}</td>" for state in _STATES)  # type: ignore[call-overload]
        yield f"<td>{esc(label)}</td>{cells}"


def _rows(rows: Sequence[Row]) -> str:
    columns = [(name, "") for name in ("kernel", "label", "state", "gates that reject it", "why", "witness")]
    return grid(columns, (_cells(row) for row in rows))


def _cells(row: Row) -> str:
    witness = _witness(row)
    seen = ""
    if witness:
        where = f"{witness.case} {witness.transform} {list(witness.index) or ''}"
        values = f" expected {witness.expected}, got {witness.got}" if witness.got else ""
        seen = f"{esc(where + values)}<br><code>{esc(witness.command)}</code>"
    gates = ", ".join(verdict.gate for verdict in row.failures)
    state = f'<td class="{_STYLES[row.state]}">{esc(row.state)}</td>'
    reason = esc("; ".join(filter(None, (row.reason, *row.notes))), 600)
    rest = "".join(f"<td>{cell}</td>" for cell in (esc(gates), reason, seen))
    return f"<td>{esc(row.id)}</td><td>{_label(row)}</td>{state}{rest}"
