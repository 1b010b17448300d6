"""The result of a task audit as a Markdown page, and in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from atrex.audit.tasks import ATOL, RTOL, Finding, OperatorAudit
from atrex.report.markdown import code, escape, table

_COLUMNS = (
    "operator", "trivial kernel", "allclose accepts", "production rejects", "or a probe", "at last by", "why"
)  # fmt: skip
_Row = tuple[str, Finding]


def findings(audits: Iterable[OperatorAudit]) -> list[_Row]:
    """All findings with their operators."""
    return [(audit.op, finding) for audit in audits for finding in audit.findings]


def summary(audits: Sequence[OperatorAudit]) -> str:
    """The whole audit in one line; what escaped is named."""
    rows = [finding for _, finding in findings(audits)]
    wrong = [finding for finding in rows if finding.wrong]
    accepted = sum(finding.allclose > 0 for finding in wrong)
    rejected = sum(finding.verdict == "rejected" for finding in wrong)
    equal = [finding for finding in rows if finding.verdict == "equivalent"]
    line = (
        f"{accepted} of {len(wrong)} wrong shortcuts accepted by allclose on at least one case, "
        f"{rejected} rejected by Atrex; {len(equal)} equivalent"
    )
    if own := sum(finding.own for finding in equal):
        line += f" ({own} of them written as wrong)"
    if idle := [f"{op} ({one.kernel})" for op, one in findings(audits) if one.verdict == "does not run"]:
        line += f"; never ran: {', '.join(idle)}"
    if gaps := escaped(audits):
        line += f"; ESCAPED: {', '.join(gaps)}"
    return line


def escaped(audits: Iterable[OperatorAudit]) -> list[str]:
    """Kernels that every source of their problem accepts though they are wrong."""
    return [f"{op} ({one.kernel})" for op, one in findings(audits) if one.verdict == "escapes"]


def render(audits: Sequence[OperatorAudit], command: str, facts: Sequence[tuple[str, str]]) -> str:
    """The whole page."""
    rows = findings(audits)
    parts = ["# Task audit: trivial kernels against allclose and against Atrex"]
    parts.append(f"`{command}`; {'; '.join(f'{name} {value}' for name, value in facts)}.")
    parts += [f"**{escape(summary(audits), 4000)}**", _explanation(), _overview(audits)]
    for title, chosen in _SECTIONS:
        if some := [(op, one) for op, one in rows if chosen(one)]:
            parts += [f"## {title}", table(_COLUMNS, map(_cells, some))]
    if notes := [f"- {audit.op}: {escape(note)}" for audit in audits for note in audit.notes]:
        parts += ["## Left out", "\n".join(notes)]
    return "\n\n".join(parts) + "\n"


_SECTIONS: tuple[tuple[str, Callable[[Finding], bool]], ...] = (
    ("Escaped: wrong, and no source of the problem shows it", lambda one: one.verdict == "escapes"),
    ("Wrong, and accepted by allclose", lambda one: one.verdict == "rejected" and one.allclose > 0),
    ("Equivalent: no source shows a difference", lambda one: one.verdict == "equivalent"),
    ("Never ran", lambda one: one.verdict == "does not run"),
    ("Wrong, and rejected by allclose too", lambda one: one.verdict == "rejected" and not one.allclose),
)


def _explanation() -> str:
    return (
        f"`allclose` is `torch.allclose(atol={ATOL:g}, rtol={RTOL:g})` against the eager reference on "
        "production inputs. The bound is the operator's own, on production inputs and, where these are not "
        "enough, on its probes; “off the grid” is the rich probe on odd shapes and other constructor "
        "arguments. “name := 0” is the reference after that input was replaced, “a = b” input b in the "
        "place of output a, “… whatever is asked” a constructor argument ignored. In italics: shortcuts "
        "written for the operator, in `bench/<operator>/shortcuts.py`. Counts are of production cases: on "
        "which allclose accepts, on which the bound rejects on production inputs, and on which it rejects "
        "on these or on a probe."
    )


def _overview(audits: Iterable[OperatorAudit]) -> str:
    rows = []
    for audit in audits:
        wrong = [finding for finding in audit.findings if finding.wrong]
        accepted = sum(finding.allclose > 0 for finding in wrong)
        production = sum(finding.production > 0 for finding in wrong)
        rejected = sum(finding.verdict == "rejected" for finding in wrong)
        equal = sum(finding.verdict == "equivalent" for finding in audit.findings)
        cells = (audit.cases, len(wrong), accepted, production, rejected, equal)
        rows.append((code(audit.op), *map(str, cells)))
    header = ("operator", "cases", "wrong shortcuts", "accepted by allclose")
    return table((*header, "rejected on production inputs", "rejected", "equivalent"), rows)


def _cells(row: _Row) -> tuple[str, ...]:
    op, one = row
    name = f"*{escape(one.kernel)}*" if one.own else escape(one.kernel)
    counts = (f"{count} of {one.cases}" for count in (one.allclose, one.production, one.rejected))
    return code(op), name, *counts, escape(one.source) or "–", escape(one.why) or "–"
