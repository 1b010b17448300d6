"""Reading files for `atrex trace`; `trace ingest` and `trace scrub`, which need no problem and no torch."""

from __future__ import annotations

import gzip
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from atrex.commands.common import console_for_output, print_json
from atrex.errors import UsageError
from atrex.report.trace_terminal import render_profiles
from atrex.roofline import Hardware, load_hardware
from traces.profile import Profile, load_profiles, merge, save_profiles

_CONDENSED = b'{"file":'  # how a line of traces.profile.save_profiles begins


@dataclass(frozen=True, slots=True)
class Reading:
    """Which files to read, and how."""

    files: tuple[Path, ...]
    jobs: int | None
    strict: bool
    rules: Path | None = None
    gpu: str | None = None


def ingest(reading: Reading, output: Path | None, *, as_json: bool) -> None:
    """Condense files; those that cannot be read are named and lose nothing else."""
    profiles, failures = read(reading)
    if output:
        save_profiles(profiles, output)
    if as_json:
        print_json({"profiles": [_summary(one) for one in profiles], "failures": failures})
        return
    console = console_for_output()
    console.print(render_profiles(sorted(profiles, key=lambda one: one.file)))
    if output:
        console.print(f"{len(profiles)} profiles in {output}", markup=False, highlight=False)


def _summary(profile: Profile) -> dict[str, object]:
    known = profile.model_dump(mode="json", exclude={"entries"})
    return {
        **known,
        "entries": len(profile.entries),
        "device_us": profile.device_us,
        "busy_us": profile.busy_us,
    }


def scrub(source: Path, target: Path) -> None:
    """Remove what says whose trace it is."""
    from traces.scrub import scrub as run

    console = console_for_output()
    for line in run(source, target).lines():
        console.print(line, markup=False, highlight=False)


def read(reading: Reading) -> tuple[tuple[Profile, ...], list[str]]:
    """Profiles of raw traces and of condensed files, each once, and a line for each file that is none.

    Those lines, and what readers complain of, go to standard error. Raises UsageError if nothing could be
    read, or with `strict` at the first file that cannot.
    """
    condensed = [path for path in reading.files if is_condensed(path)]
    raw = [path for path in reading.files if path not in condensed]
    groups, failures, said = list[Sequence[Profile]](), list[str](), list[str]()
    for path in condensed:
        try:
            groups.append(load_profiles(path))
        except UsageError as error:
            if reading.strict:
                raise
            failures.append(str(error))
            said.append(str(error))
    if raw:
        from traces.ingest import ingest_all  # duckdb and pandas, which nothing else needs

        jobs = reading.jobs or os.cpu_count() or 1
        found = ingest_all(raw, jobs=jobs, strict=reading.strict, say=said.append)
        groups.append(found.profiles)
        failures += [failure.reason for failure in found.failures]
    profiles = named(merge(*groups), reading.gpu)
    if not profiles and failures == said and len(failures) == 1:
        raise UsageError(failures[0])
    for line in said:
        sys.stderr.write(f"atrex: {line}\n")
    if not profiles:
        raise UsageError(f"none of the {len(failures)} files could be read")
    return profiles, failures


def is_condensed(path: Path) -> bool:
    """Whether a file is what `atrex trace ingest -o` writes, by its first bytes."""
    try:
        with gzip.open(path, "rb") as file:
            return file.read(len(_CONDENSED)) == _CONDENSED
    except (OSError, EOFError):
        return False  # whatever it is, its reader will say


def named(profiles: Iterable[Profile], gpu: str | None = None) -> tuple[Profile, ...]:
    """Profiles with their hardware's name as rooflines and runs have it; `gpu` names that of all.

    A name that no hardware file knows stays as the tool wrote it. Raises UsageError for an unknown `gpu`.
    """
    given = load_hardware(gpu).name if gpu else None
    return tuple(
        profile.model_copy(update={"hardware": given or _canonical(profile.hardware)}) for profile in profiles
    )


@cache
def _canonical(name: str) -> str:
    found = known_hardware(name)
    return found.name if found else name


@cache
def known_hardware(name: str) -> Hardware | None:
    """The hardware of this name, or None if no file describes it."""
    try:
        return load_hardware(name)
    except UsageError:  # not one of ours: its cases have no bound, and the report says so
        return None
