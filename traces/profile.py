"""What one profile says of the device, condensed: the small table that every reader makes of a file.

    profile = ingest(path)                  # traces.ingest: whatever tool wrote it
    profiles = merge([profile], others)     # in any order, any grouping, with repeats: the same set

A launch is one activity of a device: a kernel, a copy or a fill. Launches that cannot be told apart (same
kernel, launched by the same operation with the same shapes, in the same annotations) are one entry with
their number and their time. So a file of a gigabyte becomes a few hundred entries, which joins, weights and
reports work on; profiles of a cluster are condensed where they lie and merged later.

Times are microseconds. `device_us` adds up durations, as the profilers' own tables do. `busy_us` counts
time once: where n launches of one device overlap, each gets an nth of it, so that busy_us adds up to the time
in which the device worked at all.
"""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError, model_validator

from atrex.errors import UsageError
from atrex.records import Record

MOST_BYTES = 1 << 28  # of a condensed profile, unpacked: anything larger is none
UNKNOWN = ""  # of a name or a text that the profile does not hold

Kind = Literal["kernel", "copy", "fill"]
Format = Literal["kineto", "nsys", "rocprof", "csv"]
Time = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class Entry(Record):
    """Launches that cannot be told apart, on one device."""

    kind: Kind = "kernel"
    kernel: str  # as the tool names it, demangled
    device: Count = 0
    operator: str = UNKNOWN  # innermost operation that launched it: aten::mm, vllm::rotary_embedding
    stack: tuple[str, ...] = ()  # operations around it, outermost first, `operator` last
    module: str = UNKNOWN  # innermost nn.Module or Python function, where stacks were recorded
    shapes: str = UNKNOWN  # JSON of the dimensions of the operation's inputs: [[512, 64], [64], []]
    dtypes: str = UNKNOWN  # JSON of their types, as the tool names them
    scalars: str = (
        UNKNOWN  # JSON of the texts of scalar inputs, empty for others: ["","1e-06"] (traces.scalars)
    )
    annotations: tuple[str, ...] = ()  # record_function and NVTX ranges around it, outermost first
    graph: bool = False  # replayed from a captured graph: operation and shapes are those of no launch
    launches: Annotated[int, Field(ge=1)]
    device_us: Time
    busy_us: Time

    @property
    def key(self) -> tuple[object, ...]:
        """What tells it from other entries of its profile."""
        names = (self.kind, self.kernel, self.device, self.operator, self.stack, self.module)
        return (*names, self.shapes, self.dtypes, self.scalars, self.annotations, self.graph)


class Gaps(Record):
    """Pauses of a device between two launches, of one magnitude."""

    least_us: Time  # pauses from here to ten times as much
    count: Count
    total_us: Time


class DeviceTime(Record):
    """How one device spent the profile, from its first launch to the end of its last."""

    device: Count
    span_us: Time
    busy_us: Time
    streams: Count
    gaps: tuple[Gaps, ...] = ()

    @property
    def idle_us(self) -> float:
        """Time in which nothing ran."""
        return max(0.0, self.span_us - self.busy_us)


class Profile(Record):
    """One file of a profiler, condensed."""

    schema_version: Literal[1] = 1
    file: str  # its name without directories, which say who recorded it
    format: Format
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # sha256 of the file: its identity
    hardware: str = UNKNOWN
    rank: Annotated[int | None, Field(ge=0)] = None
    world_size: Annotated[int | None, Field(ge=1)] = None
    devices: tuple[DeviceTime, ...]
    entries: tuple[Entry, ...]
    complaints: tuple[str, ...] = ()  # what could not be read, a line each

    @model_validator(mode="after")
    def _consistent(self) -> Profile:
        keys = [entry.key for entry in self.entries]
        if len(set(keys)) < len(keys):
            raise ValueError("two entries cannot be told apart: add them up")
        known = {device.device for device in self.devices}
        if stray := {entry.device for entry in self.entries} - known:
            raise ValueError(f"device {min(stray)} has entries and no time")
        return self

    @property
    def device_us(self) -> float:
        """All launches' durations."""
        return sum(entry.device_us for entry in self.entries)

    @property
    def busy_us(self) -> float:
        """Time in which a device worked, overlap counted once, over all devices."""
        return sum(device.busy_us for device in self.devices)


def digest_of(path: Path) -> str:
    """The identity of a file: sha256 of its bytes. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def merge(*groups: Iterable[Profile]) -> tuple[Profile, ...]:
    """The profiles of all groups, each file once, in an order that does not hang on theirs.

    Associative, commutative and idempotent: ranks of one job, files of one run, clusters are merged alike.
    """
    found = {profile.digest: profile for group in groups for profile in group}
    return tuple(found[digest] for digest in sorted(found))


def save_profiles(profiles: Iterable[Profile], path: Path) -> None:
    """Write condensed profiles, one a line of gzipped JSON. Raises UsageError."""
    lines = "".join(profile.model_dump_json(exclude_defaults=True) + "\n" for profile in merge(profiles))
    try:
        with path.open("wb") as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            packed.write(lines.encode())
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None


def load_profiles(path: Path) -> tuple[Profile, ...]:
    """Read what `save_profiles` wrote. Raises UsageError, one line."""
    try:
        with gzip.open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read ({error}); write it with atrex trace ingest") from None
    if len(text) > MOST_BYTES:
        raise UsageError(f"{path}: holds more than {MOST_BYTES >> 20} MiB: no condensed profile does")
    try:
        return merge(Profile.model_validate_json(line) for line in text.splitlines() if line.strip())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{path}: no condensed profile: {place}: {first['msg']}") from None
