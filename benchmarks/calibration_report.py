"""The calibration's findings as a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from measured import conditions

from atrex.audit.tasks import ATOL, RTOL
from atrex.contract import Family
from atrex.records import Device

if TYPE_CHECKING:
    from calibration import Finding

ALLCLOSE_CASES = 3  # production cases of an operator, spread over all


def report(findings: Sequence[Finding], device: Device, command: str) -> str:
    """The findings as a Markdown page."""
    wrong = [finding for finding in findings if not finding.specimen.honest]
    right = [finding for finding in findings if finding.specimen.honest]
    lines = [
        f"# Calibration of the gates on {device}",
        "",
        f"{conditions(command, device)}; {sum(finding.seconds for finding in findings):.0f} s of work.",
        "",
        f"- Mutants rejected by the gate they name: **{_count(wrong)}**",
        f"- Mutants that `allclose(atol={ATOL:g}, rtol={RTOL:g})` accepts on {ALLCLOSE_CASES} production "
        f"cases (cut to what the engine computes): **{_accepted(wrong)} of {len(wrong)}**",
        f"- Honest kernels accepted by all gates: **{_count(right)}**",
        "",
        "| family | mutants, by the gate they name | accepted by allclose | gates covered | honest kernels |",
        "|---|---|---|---|---|",
        *(_family_row(family, wrong, right) for family in get_args(Family)),
        "",
    ]
    if wrong:
        lines += [
            "The first gate is the first in their order that rejects at a screening (or, where only the full "
            "level shows the fault, the named gate); none where only the named gate was looked at.",
            "",
            "| mutant | what is wrong | allclose | named gate | its verdict | first gate | s |",
            "|---|---|---|---|---|---|---|",
            *(_mutant_row(finding) for finding in wrong),
            "",
        ]
    if right:
        lines += [
            "| honest kernel | what it is | allclose | all gates | s |",
            "|---|---|---|---|---|",
            *(_honest_row(finding) for finding in right),
            "",
        ]
    return "\n".join(lines)


def _count(findings: Sequence[Finding]) -> str:
    return f"{sum(finding.right for finding in findings)} of {len(findings)}"


def _accepted(findings: Sequence[Finding]) -> int:
    return sum(finding.allclose == "accepts" for finding in findings)


def _family_row(family: str, wrong: Sequence[Finding], right: Sequence[Finding]) -> str:
    mutants, controls = ([f for f in found if f.specimen.family == family] for found in (wrong, right))
    gates = {finding.specimen.gate for finding in mutants}
    return _row(family, _count(mutants), str(_accepted(mutants)), str(len(gates)), _count(controls))


def _mutant_row(finding: Finding) -> str:
    specimen, named = finding.specimen, finding.named
    verdict = f"{named.status.value} {named.reason[:100]}".strip() if named else ""
    first = finding.first.gate if finding.first else "none"
    cells = (specimen.name, specimen.what, finding.allclose, specimen.gate, verdict, first)
    return _row(*cells, f"{finding.seconds:.0f}")


def _honest_row(finding: Finding) -> str:
    first = finding.first
    verdict = f"{first.gate} {first.status.value}: {first.reason[:100]}" if first else "accepted"
    cells = (finding.specimen.name, finding.specimen.what, finding.allclose, verdict)
    return _row(*cells, f"{finding.seconds:.0f} ({finding.slowest})")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
