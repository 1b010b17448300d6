"""The report of one operator as one self-contained HTML file."""

from __future__ import annotations

import math

from atrex.records import Judgement, Ratio, Status, Verdict
from atrex.report import RunReport, Step
from atrex.report.page import bullets, esc, gain, grid, number, page, section
from atrex.report.plots import history, roofline
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
    place,
    points,
    reason,
    standing,
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
    return page(f"{report.op} on {report.device}", sections)


def _header(report: RunReport) -> str:
    word = standing(report)
    colour = "pass" if word == "ACCEPTED" else "fail"
    where = f" · {esc(report.provenance.hardware)}" if report.provenance else ""
    return (
        f'<header><h1>{esc(report.op)}</h1><span class="badge {colour}">{word}</span>'
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
    return section("Notes", bullets(report.notes)) if report.notes else ""


def _plots(report: RunReport) -> str:
    plots = []
    if figure := roofline(report.cases):
        legend = (
            "● this kernel, ○ eager PyTorch, solid: speed of light, dashed: attainable, ✕: no measurement"
        )
        plots.append(section("Roofline", f'{figure}<p class="legend">{legend}</p>'))
    if figure := history(report.history, report.dropout):
        legend = "● measured with its interval (green: promoted), ◇ predicted, ✕: not measured, band: dropout"
        plots.append(section("Search", f'{figure}<p class="legend">{legend}</p>'))
    return f'<div class="plots">{"".join(plots)}</div>' if plots else ""


def _cases(report: RunReport) -> str:
    if not report.cases:
        return ""
    shares = lost_share(report)
    top = max(shares.values()) or 1.0
    rows = [_case(one, shares[one.case.id], shares[one.case.id] / top) for one in by_loss(report)]
    size = " × ".join(dims(report.cases[0].case)) or "size"
    columns = (("case", ""), (size, ""), *CASE_COLUMNS)
    return section("Cases, by lost points (1 − S)·w", grid(columns, rows))


def _case(one: CaseScore, share: float, length: float) -> str:
    case, result = one.case, one.result
    latency = result.latency if result else None
    time = f'<td class="n fail" data-v="inf">{one.standing}</td>'
    if latency:
        edges = f"[{micros(latency.p10_us)}, {micros(latency.p90_us)}]"
        time = number(latency.median_us, f'{micros(latency.median_us)} <span class="range">{edges}</span>')
    host, eager = latency.host_us if latency else None, eager_us(one)
    size = dims(case).values()
    return "".join(
        [
            f'<td class="id">{esc(case.id.removeprefix(f"{case.operator}-"))}</td>',
            f'<td data-v="{math.prod(size)}">{" × ".join(map(str, size)) or DASH}</td><td>{case.phase}</td>',
            number(case.weight, f"{case.weight:.4f}"),
            time,
            number(host, micros(host)),
            number(eager, micros(eager)),
            gain(result.vs_eager if result else None),
            gain(result.vs_compile if result else None),
            number(one.S, points(one.S)),
            number(one.A, points(one.A)),
            f"<td>{esc(result.bound.limiter) if result else DASH}</td>",
            number(share, f'<span class="bar" style="width:{40 * length:.0f}px"></span>{share:.1%}'),
        ]
    )


def _gates(judgement: Judgement | None) -> str:
    if judgement is None:
        return ""
    chips = "".join(
        f'<span class="{COLOURS[verdict.status]}">{esc(verdict.gate)}'
        f"{'' if verdict.status is Status.PASS else f' {verdict.status}'}</span>"
        for verdict in judgement.verdicts
    )
    chips += "".join(f'<span class="muted">{esc(gate)} not run</span>' for gate in unspoken(judgement))
    columns = (("gate", ""), ("status", ""), ("tolerance-free", ""), ("what the gate saw", ""), ("s", "n"))
    table = grid(columns, [_verdict(verdict) for verdict in judgement.verdicts])
    about = (
        f"{judgement.level} level on {judgement.device}, seed {judgement.seed}, {duration(judgement.seconds)}"
    )
    opened = "" if judgement.accepted else " open"
    body = f'<div class="gates">{chips}</div><details{opened}><summary>{about}</summary>{table}</details>'
    return section("Gates", body)


def _verdict(verdict: Verdict) -> str:
    seen = [esc(text) for text in (reason(verdict), metrics(verdict)) if text]
    if witness := verdict.witness:
        seen.append(esc(place(witness)))
        if witness.expected or witness.got:
            seen.append(f"expected <code>{esc(witness.expected)}</code>, got <code>{esc(witness.got)}</code>")
        if witness.command:
            seen.append(f"<code>{esc(witness.command, 2000)}</code>")
    return (
        f'<td>{esc(verdict.gate)}</td><td class="{COLOURS[verdict.status]}">{verdict.status}</td>'
        f"<td>{'yes' if verdict.tolerance_free else 'no'}</td><td>{'<br>'.join(seen)}</td>"
        + number(verdict.seconds, f"{verdict.seconds:.1f}")
    )


def _search(report: RunReport) -> str:
    if not report.history:
        return ""
    table = grid(STEP_COLUMNS, [_step(step) for step in report.history])
    count = len({step.step for step in report.history})
    return section("Steps of the search", f"<details><summary>{count} steps</summary>{table}</details>")


def _step(step: Step) -> str:
    colour = ' class="pass"' if step.outcome == "promoted" else ""
    return (
        number(step.step, str(step.step))
        + f"<td>{esc(step.bucket)}</td><td>{esc(step.move)}</td>"
        + number(step.predicted, factor(step.predicted))
        + gain(step.realised)
        + f"<td{colour}>{esc(step.outcome)}</td><td>{esc(step.note)}</td>"
    )


def _dropout(report: RunReport) -> str:
    if not report.dropout:
        return ""
    lines = [
        f"steps {e.first}–{e.last}: hid {', '.join(e.hidden) or 'nothing'} (share {e.share:.2f}): {e.outcome}"
        for e in report.dropout
    ]
    return section("Optimization dropout", bullets(lines))


def _origin(report: RunReport) -> str:
    pairs = [("run", report.run), ("kernel", report.kernel or "none accepted"), ("command", report.command)]
    pairs += machine(report.provenance)
    body = "".join(
        f"<dt>{esc(name)}</dt><dd><code>{esc(value, 2000)}</code></dd>" for name, value in pairs if value
    )
    return section("Provenance", f"<dl>{body}</dl>")
