"""What the hunt says of a file: findings, kernels, a verdict."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from atrex.records import Record

FindingKind = Literal["compute", "unresolved", "dead-kernel", "broken"]


class Outcome(StrEnum):
    """Who did the work, the best first. All but `kernel` are flagged."""

    KERNEL = "kernel"  # its own kernels, on every path that is reached
    PARTIAL = "partial"  # its own kernels, and a library on some path
    UNRESOLVED = "unresolved"  # what is reached cannot be known by reading
    DEAD_KERNEL = "dead-kernel"  # a kernel is there and never launched
    FALLBACK = "fallback"  # a library, and no kernel at all
    BROKEN = "broken"  # no source that could be read, or nothing in it to enter


class Finding(Record):
    """One place that is not the candidate's own kernel, and how it is reached."""

    kind: FindingKind
    operation: str  # as a reader would name it: torch.matmul, `x * y`, exec
    line: int
    column: int  # from 1, in characters of the line
    chain: tuple[str, ...] = ()  # calls from the entry to the place: "Model.forward:12"
    reason: str


class KernelSite(Record):
    """A kernel that the file defines."""

    name: str
    line: int
    launched: bool


class Seen(Record):
    """An operation or a kernel of one call. `device_us`: time on the GPU; 0 on a CPU."""

    name: str
    origin: str  # own, setup, glue, compute, library
    count: int
    device_us: float = 0.0
    sizes: str = ""


class CaseReport(Record):
    """What one case's call did. `share`: of the device time, by origin; None where it was not measured.

    `not_own`: outputs that come out the same when the candidate's kernels do nothing.
    """

    case: str
    verdict: Outcome
    reason: str
    seen: tuple[Seen, ...] = ()
    share: dict[str, float] | None = None
    not_own: tuple[str, ...] = ()


class FileReport(Record):
    """One file: its verdict, what it rests on, and the kernels. `operator`: "" if it is none of ours."""

    file: str
    verdict: Outcome
    reason: str
    operator: str = ""
    findings: tuple[Finding, ...] = ()
    kernels: tuple[KernelSite, ...] = ()
    cases: tuple[CaseReport, ...] = ()  # of the dynamic pass

    @property
    def flagged(self) -> bool:
        """Whether anything but its own kernels did the work, or may have."""
        return self.verdict is not Outcome.KERNEL


class Summary(Record):
    """What the files come to together.

    `weight`: by verdict, the share of the workload's weight in the operators that the files are for; several
    files of one operator share its weight. None if no file is for an operator of the workload.
    `speedup_from_fallbacks`: the share of the apparent speed-up over eager (its logarithm, summed over files
    that are faster) that files with a flag have. None if no speed-up is on record.
    """

    files: int
    verdicts: dict[Outcome, int]
    flagged: int
    weight: dict[Outcome, float] | None = None
    speedup_from_fallbacks: float | None = None


class Hunt(Record):
    """The whole of `atrex fallbacks`."""

    files: tuple[FileReport, ...]
    summary: Summary
