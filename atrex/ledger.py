"""The append-only record of a run: one JSON object a line, never rewritten.

A line that a killed process left half written costs only itself: readers skip it with a warning, and the
next append starts on a line of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from atrex.errors import EnvironmentProblem, UsageError
from atrex.records import SCHEMA_VERSION, Record, Result

RESULT = "result"


class Entry(Record):
    """One line of a ledger. `hardware` names the machine, so that every line stands on its own."""

    seq: int
    time: str  # UTC, ISO 8601
    kind: str
    payload: dict[str, Any]
    hardware: str = ""
    schema_version: int = SCHEMA_VERSION


class DamagedLine(UserWarning):
    """A line that could not be read; only that line is lost."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: skipped a damaged ledger line ({reason})")
        self.path, self.line, self.reason = path, line, reason


class ResultKey(NamedTuple):
    """What makes two results the same measurement."""

    candidate: str
    operator: str
    case: str
    hardware: str
    policy: str


def _warn(damage: DamagedLine) -> None:
    warnings.warn(damage, stacklevel=3)


def read(path: Path, on_damage: Callable[[DamagedLine], object] = _warn) -> Iterator[Entry]:
    """Entries in file order; each unreadable line goes to `on_damage` and is skipped.

    Raises UsageError if the file is missing, or was written by a newer Atrex.
    """
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path}: cannot read the ledger ({error.strerror})") from None
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            entry = _parse(path, number, line)
            if isinstance(entry, DamagedLine):
                on_damage(entry)
            else:
                yield entry


def _parse(path: Path, number: int, line: bytes) -> Entry | DamagedLine:
    try:
        data = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return DamagedLine(path, number, f"not JSON: {error}")
    version = data.get("schema_version") if isinstance(data, dict) else None
    if type(version) is int and version > SCHEMA_VERSION:
        raise UsageError(
            f"{path}:{number}: schema_version {version} is newer than the {SCHEMA_VERSION} that this Atrex "
            "reads; upgrade Atrex to open this run"
        )
    try:
        return Entry.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        return DamagedLine(path, number, f"field {'.'.join(map(str, first['loc'])) or '?'}: {first['msg']}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def merge_results(entries: Iterable[Entry]) -> dict[ResultKey, Result]:
    """Results by key; of two with the same key the later one counts.

    Entries of several ledgers (many machines, a resumed run) may be chained. Raises UsageError for a
    result entry whose payload is not a Result.
    """
    merged: dict[ResultKey, Result] = {}
    for entry in entries:
        if entry.kind == RESULT:
            result = _as_result(entry)
            key = ResultKey(result.candidate, result.operator, result.case, entry.hardware, result.policy)
            merged[key] = result
    return merged


def _as_result(entry: Entry) -> Result:
    try:
        return Result.model_validate_json(json.dumps(entry.payload))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "payload"
        raise UsageError(f"ledger entry {entry.seq}: not a result: {field}: {first['msg']}") from None


class Ledger:
    """The single writer of one ledger file; the directory is created if need be.

    Raises EnvironmentProblem if the file cannot be written or another process writes it, and UsageError if
    a newer Atrex wrote it. `damaged` lists the unreadable lines found on opening.
    """

    def __init__(self, path: Path, hardware: str = "") -> None:
        self.path = path
        self.hardware = hardware
        self.damaged: list[DamagedLine] = []
        self._writing = threading.Lock()
        self._lock = self._file = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(path)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._seq = max((entry.seq for entry in read(path, self.damaged.append)), default=-1)
            self._at_line_start = _ends_with_newline(self._file)
        except OSError as error:
            self.close()
            raise _unwritable(path, error) from None
        except BaseException:
            self.close()
            raise
        _open_ledgers.add(self)

    def append(self, kind: str, payload: BaseModel | Mapping[str, Any]) -> Entry:
        """Write one entry and wait until it is on the disk.

        Raises ValueError for a payload that JSON cannot hold (NaN, infinity), EnvironmentProblem if the
        disk refuses.
        """
        plain = to_jsonable_python(payload)
        with self._writing:
            time = datetime.now(UTC).isoformat()
            entry = Entry(seq=self._seq + 1, time=time, kind=kind, payload=plain, hardware=self.hardware)
            line = json.dumps(entry.model_dump(), allow_nan=False, separators=(",", ":")).encode() + b"\n"
            self._write(line if self._at_line_start else b"\n" + line)
            self._seq = entry.seq
        return entry

    def entries(self) -> Iterator[Entry]:
        """Every readable entry so far."""
        return read(self.path)

    def close(self) -> None:
        """Give the ledger free for another writer."""
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # also for a child that was just forked
        self._drop()

    def _drop(self) -> None:
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _write(self, line: bytes) -> None:
        self._at_line_start = False  # until the whole line is known to be there
        try:
            while line:
                line = line[os.write(self._file, line) :]  # one write, unless the disk takes only a part
            os.fsync(self._file)
        except OSError as error:
            raise _unwritable(self.path, error) from None
        self._at_line_start = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _lock(path: Path) -> int:
    """Take the writer's lock beside the ledger; it ends with the process, however that ends."""
    descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} ({' '.join(sys.argv)[:200]})".encode(errors="replace"), 0)
    except BlockingIOError:
        holder = os.pread(descriptor, 4096, 0).decode(errors="replace") or "(unknown)"
        os.close(descriptor)
        raise EnvironmentProblem(
            f"{path}: process {' '.join(holder.split())} is writing this ledger; wait for it, or stop it"
        ) from None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _ends_with_newline(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"


def _unwritable(path: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{path}: cannot write the ledger ({error.strerror}); "
        "choose another directory with --runs or ATREX_RUNS"
    )


_open_ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _forget_in_child() -> None:
    """A forked child (a worker) must neither write the ledger nor keep it locked after its parent died."""
    for ledger in list(_open_ledgers):
        ledger._drop()  # unlocking here would unlock the parent's


os.register_at_fork(after_in_child=_forget_in_child)
