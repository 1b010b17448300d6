"""The report as one self-contained HTML file: no external asset, readable in light and dark.

Candidates choose some of the text. All of it is escaped, and should some ever slip through, the page's
content security policy runs no script but the report's own, which it knows by its hash.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
from collections.abc import Iterable

from atrex.records import Judgement, Ratio, Status, Verdict
from atrex.report import RunReport, Step
from atrex.report.plots import history, roofline
from atrex.report.style import SCRIPT, STYLE
from atrex.report.text import (
    DASH,
    by_loss,
    covered,
    dims,
    duration,
    eager_us,
    factor,
    lost_share,
    machine,
    metrics,
    micros,
    outcome,
    place,
    plain,
    points,
    ratio,
    reason,
    unspoken,
)
from atrex.score import CaseScore

COLOURS = {
    Status.PASS: "pass",
    Status.FAIL: "fail",
    Status.UNSUPPORTED: "warn",
    Status.INCONCLUSIVE: "warn",
    Status.ERROR: "error",
}
CASE_COLUMNS = (
    ("phase", ""), ("weight", "n"), ("µs [p10, p90]", "n"), ("host µs", "n"),
    ("eager µs", "n"), ("× eager", "n"), ("× compile", "n"), ("S", "n"), ("A", "n"), ("limit", ""),
    ("points lost", "n"),
)  # fmt: skip
STEP_COLUMNS = (
    ("step", "n"), ("bucket", ""), ("move", ""), ("predicted ×", "n"), ("realised ×", "n"), ("outcome", ""),
    ("note", ""),
)  # fmt: skip


def render_html(report: RunReport) -> str:
    """The whole page."""
    policy = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    sections = [
        _header(report),
        _tiles(report),
        _notes(report),
        _plots(report),
        _cases(report),
        _gates(report.judgement),
        _search(report),
        _dropout(report),
        _origin(report),
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
script-src 'sha256-{policy}'">
<title>Atrex: {_e(report.op)} on {report.device}</title><style>{STYLE}</style></head>
<body><main>
{"".join(sections)}</main><script>{SCRIPT}</script></body></html>
"""


def _e(text: str, limit: int = 400) -> str:
    return html.escape(plain(text, limit))


def _header(report: RunReport) -> str:
    word = outcome(report.judgement)
    colour = "pass" if word == "ACCEPTED" else "fail"
    where = f" · {_e(report.provenance.hardware)}" if report.provenance else ""
    return (
        f'<header><h1>{_e(report.op)}</h1><span class="badge {colour}">{word}</span>'
        f"<p>{report.device}{where} · {report.dsl}</p></header>"
    )


def _tiles(report: RunReport) -> str:
    tried = f"{report.candidates_accepted} of {report.candidates_tried}"
    tiles = [
        _speedup(report.speedup_vs_eager, "vs eager", covered(report, "eager")),
        _speedup(report.speedup_vs_compile, "vs torch.compile", covered(report, "compile")),
        (points(report.S), "S, of the vendor's roofline", f"mean of {len(report.cases)} cases"),
        (points(report.A), "A, of the attainable bound", "" if report.A is not None else "not calibrated"),
        (tried, "candidates accepted", f"in {duration(report.seconds)}"),
    ]
    boxes = [
        f'<div class="tile"><b>{big}</b><span>{name}</span><span>{more}</span></div>'
        for big, name, more in tiles
    ]
    return f'<div class="tiles">{"".join(boxes)}</div>'


def _speedup(value: Ratio | None, name: str, covered: str) -> tuple[str, str, str]:
    if value is None:
        return DASH, name, "not measured"
    return f"{factor(value.median)}×", name, f"[{factor(value.low)}, {factor(value.high)}], {covered}"


def _notes(report: RunReport) -> str:
    return _section("Notes", _list(report.notes)) if report.notes else ""


def _plots(report: RunReport) -> str:
    plots = []
    if figure := roofline(report.cases):
        legend = (
            "● this kernel, ○ eager PyTorch, solid: speed of light, dashed: attainable, ✕: no measurement"
        )
        plots.append(_section("Roofline", f'{figure}<p class="legend">{legend}</p>'))
    if figure := history(report.history, report.dropout):
        legend = "● measured with its interval (green: promoted), ◇ predicted, ✕: not measured, band: dropout"
        plots.append(_section("Search", f'{figure}<p class="legend">{legend}</p>'))
    return f'<div class="plots">{"".join(plots)}</div>' if plots else ""


def _cases(report: RunReport) -> str:
    if not report.cases:
        return ""
    shares = lost_share(report)
    top = max(shares.values()) or 1.0
    rows = [_case(one, shares[one.case.id], shares[one.case.id] / top) for one in by_loss(report)]
    size = " × ".join(dims(report.cases[0].case)) or "size"
    columns = (("case", ""), (size, ""), *CASE_COLUMNS)
    return _section("Cases, by lost points (1 − S)·w", _table(columns, rows))


def _case(one: CaseScore, share: float, length: float) -> str:
    case, result = one.case, one.result
    latency = result.latency if result else None
    time = f'<td class="n fail" data-v="inf">{one.standing}</td>'
    if latency:
        edges = f"[{micros(latency.p10_us)}, {micros(latency.p90_us)}]"
        time = _number(latency.median_us, f'{micros(latency.median_us)} <span class="range">{edges}</span>')
    host, eager = latency.host_us if latency else None, eager_us(one)
    size = dims(case).values()
    return "".join(
        [
            f'<td class="id">{_e(case.id.removeprefix(f"{case.operator}-"))}</td>',
            f'<td data-v="{math.prod(size)}">{" × ".join(map(str, size)) or DASH}</td><td>{case.phase}</td>',
            _number(case.weight, f"{case.weight:.4f}"),
            time,
            _number(host, micros(host)),
            _number(eager, micros(eager)),
            _gain(result.vs_eager if result else None),
            _gain(result.vs_compile if result else None),
            _number(one.S, points(one.S)),
            _number(one.A, points(one.A)),
            f"<td>{_e(result.bound.limiter) if result else DASH}</td>",
            _number(share, f'<span class="bar" style="width:{40 * length:.0f}px"></span>{share:.1%}'),
        ]
    )


def _gates(judgement: Judgement | None) -> str:
    if judgement is None:
        return ""
    chips = "".join(
        f'<span class="{COLOURS[verdict.status]}">{_e(verdict.gate)}'
        f"{'' if verdict.status is Status.PASS else f' {verdict.status}'}</span>"
        for verdict in judgement.verdicts
    )
    chips += "".join(f'<span class="muted">{_e(gate)} not run</span>' for gate in unspoken(judgement))
    columns = (("gate", ""), ("status", ""), ("tolerance-free", ""), ("what the gate saw", ""), ("s", "n"))
    table = _table(columns, [_verdict(verdict) for verdict in judgement.verdicts])
    about = (
        f"{judgement.level} level on {judgement.device}, seed {judgement.seed}, {duration(judgement.seconds)}"
    )
    opened = "" if judgement.accepted else " open"
    body = f'<div class="gates">{chips}</div><details{opened}><summary>{about}</summary>{table}</details>'
    return _section("Gates", body)


def _verdict(verdict: Verdict) -> str:
    seen = [_e(text) for text in (reason(verdict), metrics(verdict)) if text]
    if witness := verdict.witness:
        seen.append(_e(place(witness)))
        if witness.expected or witness.got:
            seen.append(f"expected <code>{_e(witness.expected)}</code>, got <code>{_e(witness.got)}</code>")
        if witness.command:
            seen.append(f"<code>{_e(witness.command, 2000)}</code>")
    return (
        f'<td>{_e(verdict.gate)}</td><td class="{COLOURS[verdict.status]}">{verdict.status}</td>'
        f"<td>{'yes' if verdict.tolerance_free else 'no'}</td><td>{'<br>'.join(seen)}</td>"
        + _number(verdict.seconds, f"{verdict.seconds:.1f}")
    )


def _search(report: RunReport) -> str:
    if not report.history:
        return ""
    table = _table(STEP_COLUMNS, [_step(step) for step in report.history])
    count = len({step.step for step in report.history})
    return _section("Steps of the search", f"<details><summary>{count} steps</summary>{table}</details>")


def _step(step: Step) -> str:
    colour = ' class="pass"' if step.outcome == "promoted" else ""
    return (
        _number(step.step, str(step.step))
        + f"<td>{_e(step.bucket)}</td><td>{_e(step.move)}</td>"
        + _number(step.predicted, factor(step.predicted))
        + _gain(step.realised)
        + f"<td{colour}>{_e(step.outcome)}</td><td>{_e(step.note)}</td>"
    )


def _dropout(report: RunReport) -> str:
    if not report.dropout:
        return ""
    lines = [
        f"steps {e.first}–{e.last}: hid {', '.join(e.hidden) or 'nothing'} (share {e.share:.2f}): {e.outcome}"
        for e in report.dropout
    ]
    return _section("Optimization dropout", _list(lines))


def _origin(report: RunReport) -> str:
    pairs = [("run", report.run), ("kernel", report.kernel or "none accepted"), ("command", report.command)]
    pairs += machine(report.provenance)
    body = "".join(
        f"<dt>{_e(name)}</dt><dd><code>{_e(value, 2000)}</code></dd>" for name, value in pairs if value
    )
    return _section("Provenance", f"<dl>{body}</dl>")


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{_e(line)}</li>' for line in lines)}</ul>"


def _table(columns: Iterable[tuple[str, str]], rows: Iterable[str]) -> str:
    head = "".join(
        f'<th class="{kind}"><button type="button">{_e(name)}</button></th>' for name, kind in columns
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _number(value: float | None, shown: str) -> str:
    """A cell that sorts by its value; an unknown one sorts last among falling values."""
    return f'<td class="n" data-v="{-1 if value is None else f"{value:.9g}"}">{shown}</td>'


def _gain(value: Ratio | None) -> str:
    if value is None:
        return _number(None, DASH)
    median, rest = ratio(value).split(" ", 1)
    return _number(value.median, f'{median} <span class="range">{rest.replace(",", ", ")}</span>')
