"""Findings as SARIF 2.1.0, which code-review tools show beside the lines.

Format: OASIS, "Static Analysis Results Interchange Format (SARIF) Version 2.1.0" (2020).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from atrex.fallback.records import FileReport, Finding, Hunt, Outcome
from atrex.provenance import installed

_RULES = {
    "compute": "A library computes what the kernel claims to compute",
    "unresolved": "What runs cannot be known by reading",
    "dead-kernel": "A kernel is defined and never launched",
    "broken": "The file cannot be read, or has nothing to enter",
}
_LEVELS = {"compute": "error", "dead-kernel": "error", "unresolved": "warning", "broken": "warning"}


def sarif(hunt: Hunt, root: Path) -> dict[str, Any]:
    """One run of the tool over all files; `root` is what their names are relative to."""
    rules = [
        {"id": name, "shortDescription": {"text": text}, "defaultConfiguration": {"level": _LEVELS[name]}}
        for name, text in _RULES.items()
    ]
    results = [
        _result(report, finding) for report in hunt.files if report.flagged for finding in _shown(report)
    ]
    driver = {"name": "atrex fallbacks", "version": installed("atrex") or "source tree", "rules": rules}
    base = f"{root.resolve().as_uri()}/"
    run = {"tool": {"driver": driver}, "originalUriBaseIds": {"ROOT": {"uri": base}}, "results": results}
    return {"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]}


def _shown(report: FileReport) -> tuple[Finding, ...]:
    """The findings; for a file without a kernel or a call, the file itself."""
    if report.findings:
        return report.findings
    return (Finding(kind="dead-kernel", operation="the file", line=1, column=1, reason=report.reason),)


def _result(report: FileReport, finding: Finding) -> dict[str, Any]:
    through = f" (through {' → '.join(finding.chain)})" if finding.chain else ""
    text = f"{report.verdict.value}: {finding.operation}: {finding.reason}{through}"
    place = {
        "artifactLocation": {"uri": quote(Path(report.file).as_posix()), "uriBaseId": "ROOT"},
        "region": {"startLine": finding.line, "startColumn": finding.column},
    }
    return {
        "ruleId": finding.kind,
        "level": _LEVELS[finding.kind] if report.verdict is not Outcome.KERNEL else "note",
        "message": {"text": text},
        "locations": [{"physicalLocation": place}],
    }
