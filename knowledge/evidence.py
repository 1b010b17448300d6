"""What searches learned about an item of knowledge: append-only, never edited.

The record is one JSON line per experience. A writer holds a lock, so that two searches on one
machine do not interleave, and syncs, so that a killed machine loses at most the line in flight.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, ValidationError, model_validator

from atrex.errors import EnvironmentProblem, UsageError
from atrex.records import Ratio, Record, Scalar
from knowledge.home import home


class Evidence(Record):
    """One use of an item: either a gain that was measured, or the gate that rejected it."""

    schema_version: Literal[1] = 1
    item: str
    operator: str
    bucket: str
    """The case bucket that it was tried on, as the search names it."""
    hardware: str
    config: dict[str, Scalar] = Field(default_factory=dict)
    """The move: the tunables that were set."""
    predicted_gain: Annotated[float, Field(gt=0)] | None = None
    realised: Ratio | None = None
    """Paired speed-up over the incumbent, with its interval; None when a gate rejected."""
    failed_gate: str | None = None
    condition: str = ""
    """What a later reader must know: clocks, a forced fallback, the shape that failed."""
    run: str
    date: AwareDatetime

    @model_validator(mode="after")
    def _gain_or_failure(self) -> Self:
        if (self.realised is None) == (self.failed_gate is None):
            raise ValueError("evidence holds either a realised gain or the gate that failed")
        return self


class EvidenceLog:
    """The evidence of this machine, below `$ATREX_HOME/evidence/`."""

    def __init__(self, directory: Path | None = None) -> None:
        self.path = (directory or home() / "evidence") / "evidence.jsonl"

    def record(self, evidence: Evidence) -> None:
        """Append and sync; raises EnvironmentProblem when the place cannot be written."""
        with _locked(self.path) as descriptor:
            _mend_tail(descriptor)
            _write_all(descriptor, evidence.model_dump_json().encode() + b"\n")
            os.fsync(descriptor)

    def evidence_for(self, item_id: str, hardware: str | None = None) -> tuple[Evidence, ...]:
        """All evidence on one item, oldest first; only from `hardware` when it is given."""
        return tuple(e for e in self if e.item == item_id and (hardware is None or e.hardware == hardware))

    def __iter__(self) -> Iterator[Evidence]:
        """Yield every record; raises UsageError at a damaged line that is not the one in flight."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise EnvironmentProblem(f"{self.path}: cannot be read ({error.strerror})") from error
        lines = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                if line:
                    yield Evidence.model_validate_json(line)
            except ValidationError as error:
                if number == len(lines):  # no newline after it: its writer was killed
                    return
                problem = error.errors()[0]["msg"]
                raise UsageError(f"{self.path}: line {number}: {problem}; remove that line") from error


def summarise(evidence: Iterable[Evidence]) -> str:
    """One line for a reader: how often it helped, by how much, and what rejected it."""
    records = tuple(evidence)
    gains = [e.realised for e in records if e.realised]
    failures = Counter(e.failed_gate for e in records if e.failed_gate)
    parts = []
    if gains:
        best = max(gains, key=lambda gain: gain.median)
        helped = sum(gain.better for gain in gains)
        parts.append(
            f"helped in {helped} of {len(gains)} measurements, "
            f"best {best.median:.2f}x [{best.low:.2f}, {best.high:.2f}]"
        )
    parts += [f"rejected {count}x by {gate}" for gate, count in sorted(failures.items())]
    return "; ".join(parts) or "not tried yet"


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise EnvironmentProblem(
            f"{path}: cannot be written ({error.strerror}); set ATREX_HOME to a writable directory"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def _mend_tail(descriptor: int) -> None:
    """End an unfinished last line: keep it when it is whole, cut it when its writer was killed."""
    size = os.fstat(descriptor).st_size
    tail = _last_line(descriptor, size)
    if not tail:
        return
    try:
        Evidence.model_validate_json(tail)
        _write_all(descriptor, b"\n")
    except ValidationError:
        os.ftruncate(descriptor, size - len(tail))


def _last_line(descriptor: int, size: int) -> bytes:
    """Bytes after the last newline, read backwards by blocks."""
    tail, end = b"", size
    while end > 0 and b"\n" not in tail:
        start = max(0, end - 65536)
        tail = os.pread(descriptor, end - start, start) + tail
        end = start
    return tail.rpartition(b"\n")[2]


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
