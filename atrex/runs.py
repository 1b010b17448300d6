"""Run directories: where one optimisation, benchmark or measurement keeps everything it made.

`DIR/<UTC time>-<operator>-<device>-<4 hex>/` holds `run.json`, `ledger.jsonl`, `kernels/<id>.py`, `best.py`
and `report.{md,json,html}`. Names sort by time.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from atrex.errors import EnvironmentProblem, UsageError
from atrex.records import Device, Dsl, Provenance, Record, Scalar

METADATA = "run.json"
ReportFormat = Literal["md", "json", "html"]


class RunMeta(Record):
    """What was asked for, written once when the run starts."""

    schema_version: Literal[1] = 1
    created: str  # UTC, ISO 8601
    command: tuple[str, ...]
    operator: str
    device: Device
    dsl: Dsl | None = None
    seed: int
    budget: dict[str, Scalar] = Field(default_factory=dict)
    agent: dict[str, Scalar] = Field(default_factory=dict)  # who proposes, and what it may spend
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run directory."""

    path: Path
    meta: RunMeta

    @property
    def name(self) -> str:
        """The directory's name, which `find_run` accepts."""
        return self.path.name

    @property
    def ledger(self) -> Path:
        """Where the run's ledger is."""
        return self.path / "ledger.jsonl"

    @property
    def replies(self) -> Path:
        """Where the replies of models are that the run has paid for."""
        return self.path / "replies"

    @property
    def best(self) -> Path:
        """Where the best kernel is, once there is one."""
        return self.path / "best.py"

    def report(self, format: ReportFormat = "json") -> Path:
        """Where a report is, once it is written."""
        return self.path / f"report.{format}"

    def kernel(self, candidate: str) -> Path:
        """Where the source of a candidate is. Raises ValueError for an id that is no plain name."""
        if not re.fullmatch(r"[0-9A-Za-z_-]{1,100}", candidate):
            raise ValueError(f"candidate id {candidate!r} is not a plain name")
        return self.path / "kernels" / f"{candidate}.py"

    def save_kernel(self, candidate: str, source: str) -> Path:
        """Keep a candidate's source; the same id always holds the same source."""
        return write_atomic(self.kernel(candidate), source)

    def save_best(self, source: str) -> Path:
        """Put the best kernel so far in place; a reader sees the old one or the new one, whole."""
        return write_atomic(self.best, source)

    def save_report(self, format: ReportFormat, text: str) -> Path:
        """Write one report file."""
        return write_atomic(self.report(format), text)


@dataclass(frozen=True, slots=True)
class BrokenRun:
    """A directory among the runs whose metadata cannot be read."""

    path: Path
    reason: str

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name


def runs_root(given: Path | None = None) -> Path:
    """The directory of all runs: the one given, else $ATREX_RUNS, else ./runs."""
    return given or Path(os.environ.get("ATREX_RUNS") or "runs")


def now() -> str:
    """This moment as RunMeta.created wants it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def create_run(root: Path, meta: RunMeta) -> Run:
    """Make a fresh run directory with its metadata. Raises EnvironmentProblem if the disk refuses."""
    stamp = datetime.fromisoformat(meta.created).astimezone(UTC).strftime("%Y%m%dT%H%M%SZ")
    while True:
        path = root / f"{stamp}-{meta.operator}-{meta.device}-{secrets.token_hex(2)}"
        try:
            (path / "kernels").mkdir(parents=True)
        except FileExistsError:
            if path.is_dir():
                continue  # another run of the same second drew the same four digits
            raise _unwritable(root, "a file of that name is in the way") from None
        except OSError as error:
            raise _unwritable(root, error.strerror) from None
        write_atomic(path / METADATA, meta.model_dump_json(indent=2) + "\n")
        return Run(path, meta)


def open_run(path: Path) -> Run:
    """The run in a directory. Raises UsageError naming the file and the field that is wrong."""
    file = path / METADATA
    try:
        return Run(path, RunMeta.model_validate_json(file.read_bytes()))
    except OSError as error:
        raise UsageError(f"{file}: cannot read the run's metadata ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "(top level)"
        raise UsageError(f"{file}: field {field}: {first['msg']}") from None


def list_runs(root: Path) -> list[Run | BrokenRun]:
    """All runs, oldest first; one that cannot be opened is listed as broken, with the reason."""
    return [_open_or_broken(path) for path in _directories(root)]


def find_run(wanted: str, root: Path) -> Run:
    """A run by path, name, unique beginning or unique ending of its name, or "latest".

    Raises UsageError with the near misses when there is none, and with the matches when there are several.
    """
    if wanted == "latest":
        return _latest(root)
    if os.sep in wanted or (Path(wanted) / METADATA).is_file():
        path = Path(wanted)
        return open_run(path.parent if path.is_file() else path)
    names = [path.name for path in _directories(root)]
    matches = [name for name in names if wanted == name] or [
        name for name in names if wanted and (name.startswith(wanted) or name.endswith(f"-{wanted}"))
    ]
    if len(matches) == 1:
        return open_run(root / matches[0])
    if matches:
        raise UsageError(
            f"run {wanted!r} is ambiguous in {root}: {', '.join(matches[-5:])}; give more of the name"
        )
    raise UsageError(f"no run {wanted!r} in {root}; {_near_misses(wanted, names)}")


def _near_misses(wanted: str, names: list[str]) -> str:
    if not names:
        return "there are no runs yet; start one with `atrex optimize`, or name another directory with --runs"
    parts = [name for name in names if wanted and wanted in name][-3:]
    near = get_close_matches(wanted, names, n=3, cutoff=0.4) or parts
    return f"did you mean {', '.join(near)}?" if near else f"the latest is {names[-1]}"


def _latest(root: Path) -> Run:
    whole = [run for run in list_runs(root) if isinstance(run, Run)]
    if not whole:
        raise UsageError(
            f"no readable run in {root}; start one with `atrex optimize`, or name another with --runs"
        )
    return whole[-1]


def _open_or_broken(path: Path) -> Run | BrokenRun:
    try:
        return open_run(path)
    except UsageError as error:
        return BrokenRun(path, str(error))


def _directories(root: Path) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{root}: cannot list the runs ({error.strerror})") from None


def write_atomic(path: Path, text: str) -> Path:
    """Write a whole file or nothing, even if the power fails. Raises EnvironmentProblem."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(text.encode("utf-8", "surrogatepass"))
                file.flush()
                os.fsync(descriptor)
            os.chmod(temporary, 0o644)  # mkstemp makes files that only the owner can read
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise _unwritable(path, error.strerror) from None
    return path


def _unwritable(path: Path, reason: str | None) -> EnvironmentProblem:
    hint = "choose another place with --runs or --output"
    return EnvironmentProblem(f"{path}: cannot write ({reason}); {hint}")
