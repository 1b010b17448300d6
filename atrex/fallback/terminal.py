"""The hunt's table for a terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atrex.fallback.records import FileReport, Finding, Hunt, Outcome

_COLOURS = {
    Outcome.KERNEL: "green",
    Outcome.PARTIAL: "yellow",
    Outcome.UNRESOLVED: "magenta",
    Outcome.DEAD_KERNEL: "red",
    Outcome.FALLBACK: "bold red",
    Outcome.BROKEN: "dim",
}
_MOST = 40  # rows of flagged files; all are in the JSON


def render(hunt: Hunt) -> RenderableType:
    """Flagged files with what they rest on, and the counts. One file: all of its findings."""
    parts: list[RenderableType] = []
    if len(hunt.files) == 1:
        parts.append(_one(hunt.files[0]))
    else:
        flagged = [report for report in hunt.files if report.flagged]
        if flagged:
            parts.append(_table(flagged))
        parts.append(_counts(hunt))
    return Group(*parts)


def _one(report: FileReport) -> RenderableType:
    verdict = (report.verdict.value, _COLOURS[report.verdict])
    head = Text.assemble(verdict, f"  {report.file}: {report.reason}")
    findings = [Text(f"  {_line(finding)}") for finding in report.findings[:_MOST]]
    if len(report.findings) > _MOST:
        findings.append(Text(f"  … and {len(report.findings) - _MOST} more; --json lists all"))
    kernels = (Text(f"  {one.line}  kernel {one.name}{_LAUNCHED[one.launched]}") for one in report.kernels)
    return Group(head, *findings, *kernels)


_LAUNCHED = {True: "", False: ", not launched"}


def _line(finding: Finding) -> str:
    through = f"  through {' → '.join(finding.chain)}" if finding.chain else ""
    place = f"{finding.line}:{finding.column}"
    return f"{place}  {finding.kind}  {finding.operation}: {finding.reason}{through}"


def _table(flagged: list[FileReport]) -> RenderableType:
    table = Table(box=None, pad_edge=False)
    for title in ("verdict", "file", "line", "what"):
        table.add_column(title, overflow="fold" if title in ("file", "what") else "ellipsis")
    for report in flagged[:_MOST]:
        first = next((one for one in report.findings if one.kind != "dead-kernel"), None)
        line = str((first or report.findings[0]).line) if report.findings else ""
        verdict = Text(report.verdict.value, _COLOURS[report.verdict])
        table.add_row(verdict, Text(report.file), line, Text(report.reason))
    if len(flagged) > _MOST:
        table.add_row("", Text(f"… and {len(flagged) - _MOST} more; --json lists all"), "", "")
    return table


def _counts(hunt: Hunt) -> RenderableType:
    summary = hunt.summary
    counts = " · ".join(f"{count} {outcome.value}" for outcome, count in summary.verdicts.items() if count)
    lines = [Text(f"{summary.files} files: {counts}", "bold")]
    if summary.weight is not None:
        shares = ", ".join(
            f"{share:.0%} {outcome.value}" for outcome, share in summary.weight.items() if share
        )
        lines.append(Text(f"of the workload's weight in their operators: {shares}"))
    if summary.speedup_from_fallbacks is not None:
        share = f"{summary.speedup_from_fallbacks:.0%}"
        lines.append(Text(f"of the apparent speed-up over eager: {share} from flagged files"))
    return Group(*lines)
