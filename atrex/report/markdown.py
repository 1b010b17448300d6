"""Reports and verdicts as GitHub markdown."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from atrex.records import Judgement, Status, Verdict, Witness
from atrex.report import RunReport
from atrex.report.text import (
    DASH,
    by_loss,
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
    speedup,
    spread,
    standing,
    unspoken,
)
from atrex.score import CaseScore

CASE_COLUMNS = (
    "case", "size", "phase", "w", "µs [p10,p90]", "host µs", "eager µs", "× eager", "× compile",
    "S", "A", "limit", "lost",
)  # fmt: skip


def render_markdown(report: RunReport) -> str:
    """The whole report."""
    where = f" ({escape(report.provenance.hardware)})" if report.provenance else ""
    parts = [
        f"# {escape(report.op)} on {report.device}{where}, {report.dsl}: {standing(report)}",
        table(("", ""), _facts(report)),
    ]
    if report.judgement:
        parts += ["## Gates", _verdict_table(report.judgement)]
    if report.cases:
        parts += ["## Cases, by lost points (1 − S)·w", table(CASE_COLUMNS, _case_rows(report))]
    if report.history:
        parts += ["## Search", _history(report)]
    if report.dropout:
        parts += ["## Optimization dropout", _dropout(report)]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {escape(note)}" for note in report.notes)]
    if report.provenance:
        pairs = [(escape(name), escape(value)) for name, value in machine(report.provenance)]
        parts += ["## Provenance", table(("", ""), pairs)]
    return "\n\n".join(parts) + "\n"


def render_verdicts(judgement: Judgement) -> str:
    """Every gate in a table, then each witness with the command that shows the failure again."""
    parts = [
        f"# {escape(judgement.operator)}: {outcome(judgement)}",
        f"{judgement.level} level on {judgement.device}, seed {judgement.seed}, "
        f"{duration(judgement.seconds)}; candidate {code(judgement.candidate)}",
        _verdict_table(judgement),
    ]
    parts += [_witness(verdict, verdict.witness) for verdict in judgement.verdicts if verdict.witness]
    return "\n\n".join(parts) + "\n"


def escape(text: str, limit: int = 400) -> str:
    """Text that markdown and the HTML within it show as it is; an address in it does not become a link."""
    shown = html.escape(plain(text, limit), quote=False).replace("://", "&#58;//")
    return re.sub(r"([\\`*\[\]~!]|(?<![a-zA-Z0-9])_|_(?![a-zA-Z0-9])|(?<!&)#)", r"\\\1", shown)


def code(text: str, limit: int = 2000) -> str:
    """A code span that holds any text: its fence is longer than any run of backticks within."""
    shown = plain(text, limit)
    if not shown:
        return DASH
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    pad = " " if "`" in shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A pipe table of cells that are escaped but for their own pipes."""
    head = list(header)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _facts(report: RunReport) -> list[tuple[str, str]]:
    return [
        ("speed-up vs eager", speedup(report, "eager")),
        ("speed-up vs compile", speedup(report, "compile")),
        ("S", points(report.S)),
        ("A", points(report.A)),
        ("candidates", f"{report.candidates_tried} tried, {report.candidates_accepted} accepted"),
        ("agent", escape(report.agent)),
        ("asked", str(report.spent) if report.spent else ""),
        ("time", duration(report.seconds)),
        ("kernel", code(report.kernel or "")),
        ("not believed", escape(report.doubt)),
        ("run", code(report.run)),
        ("command", code(report.command)),
    ]


def _verdict_table(judgement: Judgement) -> str:
    rows = [
        (
            escape(verdict.gate),
            verdict.status if verdict.status is Status.PASS else f"**{verdict.status}**",
            "yes" if verdict.tolerance_free else "no",
            escape(reason(verdict)) or DASH,
            escape(metrics(verdict)) or DASH,
        )
        for verdict in judgement.verdicts
    ]
    rows += [
        (escape(gate), "not run", DASH, "required, and has not spoken", DASH) for gate in unspoken(judgement)
    ]
    return table(("gate", "status", "tolerance-free", "reason", "metrics"), rows)


def _witness(verdict: Verdict, witness: Witness) -> str:
    seen = f"expected {code(witness.expected)}, got {code(witness.got)}."
    lines = [f"### {escape(verdict.gate)}: {verdict.status}", f"{escape(place(witness))}: {seen}"]
    if witness.command:
        lines.append("    " + plain(witness.command, 2000))
    return "\n\n".join(lines)


def _case_rows(report: RunReport) -> list[list[str]]:
    shares = lost_share(report)
    return [[*_case(one), f"{shares[one.case.id]:.0%}"] for one in by_loss(report)]


def _case(one: CaseScore) -> list[str]:
    result = one.result
    latency = result.latency if result else None
    return [
        escape(one.case.id),
        escape(" ".join(f"{name}={value}" for name, value in dims(one.case).items())) or DASH,
        one.case.phase,
        f"{one.case.weight:.4f}",
        spread(latency) if latency else f"**{one.standing}**",
        micros(latency.host_us if latency else None),
        micros(eager_us(one)),
        ratio(result.vs_eager if result else None),
        ratio(result.vs_compile if result else None),
        points(one.S),
        points(one.A),
        escape(result.bound.limiter) if result else DASH,
    ]


def _history(report: RunReport) -> str:
    rows = [
        (
            str(step.step),
            escape(step.bucket) or DASH,
            escape(step.move),
            factor(step.predicted),
            ratio(step.realised),
            escape(step.outcome),
            escape(step.note) or DASH,
        )
        for step in report.history
    ]
    return table(("step", "bucket", "move", "predicted ×", "realised ×", "outcome", "note"), rows)


def _dropout(report: RunReport) -> str:
    rows = [
        (
            f"{e.first}–{e.last}",
            f"{e.share:.2f}",
            escape(", ".join(e.hidden)) or DASH,
            escape(e.outcome) or DASH,
        )
        for e in report.dropout
    ]
    return table(("steps", "share", "hidden", "outcome"), rows)
