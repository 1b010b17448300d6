"""Scrubbing: a trace without what says where it comes from, and the proof that its workload is the same.

    report = scrub(Path("rank0.pt.trace.json.gz"), Path("public.json.gz"))
    for line in report.lines(): ...

The result is written anew from an allow-list, never edited: times, ids under new numbers, names of kernels
and operations, shapes, types, steps of known engines. All else is left out, or replaced where something
hangs on it. Then both files are ingested, and must say the same.
"""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atrex.errors import AtrexError, UsageError
from traces.ingest import ingest
from traces.profile import DeviceTime, Entry, Format, Profile
from traces.readers import UnreadableTrace
from traces.scrub_csv import scrub_plain, scrub_rocprof
from traces.scrub_kineto import scrub_kineto
from traces.scrub_names import Names
from traces.scrub_nsys import scrub_nsys

SCRUBBERS: dict[Format, Callable[[Path, Path, Names], None]] = {
    "kineto": scrub_kineto,
    "nsys": scrub_nsys,
    "rocprof": scrub_rocprof,
    "csv": scrub_plain,
}
# Sums of the same numbers in another order.
_RELATIVE, _ABSOLUTE = 1e-9, 1e-6


class NotScrubbed(AtrexError):
    """No scrubbed file was left behind: the workload would have changed."""


@dataclass(frozen=True, slots=True)
class Report:
    """What scrubbing did. It names kinds, never what was removed."""

    source: Path
    files: tuple[Path, ...]  # written
    format: Format
    removed: dict[str, int]  # by kind
    replaced: dict[str, int]  # ids under new numbers, by kind
    entries: int  # of the profile that both files give
    device_us: float

    def lines(self) -> tuple[str, ...]:
        """The report, for a terminal."""
        said = [f"{file}: written" for file in self.files]
        said += [f"removed or replaced: {count} {kind}" for kind, count in sorted(self.removed.items())]
        said += [f"renumbered {count} ids ({kind})" for kind, count in sorted(self.replaced.items())]
        proof = f"{self.entries} entries, {self.device_us:.1f} us of device time"
        return (*said, f"the workload is unchanged: {proof}")


def scrub(source: Path, target: Path) -> Report:
    """Write `target` from what of `source` may be shared; of rocprofv3, also the files beside it.

    Raises UnreadableTrace if the source is no trace; UsageError if the target exists or has the wrong name;
    NotScrubbed if the two do not give the same profile. Then nothing is left behind.
    """
    if target.exists():
        raise UsageError(f"{target}: exists; name a new file")
    before = ingest(source)
    names = Names()
    try:
        with tempfile.TemporaryDirectory(prefix=".scrub-", dir=target.parent) as directory:
            new = Path(directory) / target.name
            _write(source, new, before.format, names)
            removed = dict(names.removed)
            after = _ingested(source, new)
            if difference := differs(before, after, names):
                raise NotScrubbed(f"{source}: not scrubbed, as its workload would change: {difference}")
            files = _moved(Path(directory), target.parent)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written ({error.strerror})") from None
    ids = {kind: len(known) for kind, known in names.ids.items()}
    return Report(source, files, before.format, removed, ids, len(after.entries), after.device_us)


def _write(source: Path, new: Path, format: Format, names: Names) -> None:
    try:
        SCRUBBERS[format](source, new, names)
    except ValueError as error:
        raise NotScrubbed(f"{source}: not scrubbed: {error}") from None


def _ingested(source: Path, new: Path) -> Profile:
    try:
        return ingest(new)
    except UnreadableTrace as error:
        reason = str(error).removeprefix(f"{new}: ")
        raise NotScrubbed(f"{source}: not scrubbed, as the result cannot be read: {reason}") from None


def _moved(directory: Path, target: Path) -> tuple[Path, ...]:
    """Put what was written in its place. Raises UsageError if something is there."""
    new = sorted(directory.iterdir())
    for file in new:
        if (target / file.name).exists():
            raise UsageError(f"{target / file.name}: exists; name a new file")
    return tuple(file.rename(target / file.name) for file in new)


def differs(before: Profile, after: Profile, names: Names) -> str:
    """What the scrubbed profile says otherwise than the first, names being replaced; empty if nothing.

    Neither names of files nor complaints are compared: what could not be read is not in the scrubbed file.
    """
    hardware = ", ".join(sorted({names.hardware(name) for name in before.hardware.split(", ") if name}))
    for what, old, new in (
        ("format", before.format, after.format),
        ("hardware", hardware, after.hardware),
        ("rank", before.rank, after.rank),
        ("number of ranks", before.world_size, after.world_size),
        ("number of devices", len(before.devices), len(after.devices)),
    ):
        if old != new:
            return what
    for device, other in zip(before.devices, after.devices, strict=True):
        if not _alike(_flat(device), _flat(other)):
            return f"time of device {device.device}"
    return _entries_differ(_summed(names.entry(entry) for entry in before.entries), after.entries)


def _entries_differ(old: dict[tuple[object, ...], list[float]], after: Iterable[Entry]) -> str:
    new = {entry.key: [entry.launches, entry.device_us, entry.busy_us] for entry in after}
    if lost := len(old.keys() - new.keys()):
        return f"{lost} of {len(old)} entries are not the same"
    if len(new) > len(old):
        return f"{len(new) - len(old)} entries are new"
    changed = sum(not _alike(times, new[key]) for key, times in old.items())
    return f"times of {changed} entries" if changed else ""


def _summed(entries: Iterable[dict[str, Any]]) -> dict[tuple[object, ...], list[float]]:
    """Launches and times by key: entries whose names became the same are one."""
    found: dict[tuple[object, ...], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for fields in entries:
        sums = found[Entry(**fields).key]
        for place, name in enumerate(("launches", "device_us", "busy_us")):
            sums[place] += fields[name]
    return found


def _flat(device: DeviceTime) -> list[float]:
    gaps = [value for gap in device.gaps for value in (gap.least_us, gap.count, gap.total_us)]
    return [device.device, device.span_us, device.busy_us, device.streams, *gaps]


def _alike(old: list[float], new: list[float]) -> bool:
    return len(old) == len(new) and all(
        math.isclose(one, other, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
        for one, other in zip(old, new, strict=True)
    )
