"""From profilers' files to condensed profiles, whatever tool wrote them.

    profile = ingest(Path("rank0.pt.trace.json.gz"))
    found = ingest_all([Path("traces/")], jobs=8, strict=False, say=print)

The format is found by content. Files are independent of each other: they are read in processes of their own,
one that cannot be read costs one line, and the result is the same for any number of processes.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from atrex.errors import AtrexError, EnvironmentProblem, UsageError
from traces.profile import Profile, digest_of, merge

try:
    from traces.condense import Condensed, condense
    from traces.readers import Reading, UnreadableTrace, kineto, nsys, plain, rocprof
    from traces.readers.packed import MOST_BYTES, head
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] in ("atrex", "traces"):
        raise
    raise EnvironmentProblem(f"reading traces needs {error.name}: pip install 'atrex[traces]'") from None

READERS = (nsys, rocprof, plain)  # of all formats but Kineto's, the only one in JSON
SUFFIXES = (".json", ".json.gz", ".sqlite", ".csv", ".csv.gz")  # of files that a directory is searched for
KNOWN = "a torch.profiler trace (JSON), an nsys export (.sqlite), a CSV of rocprofv3, a plain CSV"


class Failure(NamedTuple):
    """A file, or a directory without one, that gave no profile, and why: one line that names it."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Ingested:
    """What became of some files."""

    profiles: tuple[Profile, ...]  # each once, by digest
    failures: tuple[Failure, ...] = ()  # directories without traces, then files in their order


def ingest(path: Path, *, jobs: int = 1, most_bytes: int = MOST_BYTES) -> Profile:
    """One file, condensed; a large one is read by `jobs` processes.

    `most_bytes` bounds the size of a JSON trace, unpacked. Raises UnreadableTrace, and EnvironmentProblem
    where the disk is full.
    """
    try:
        with ThreadPoolExecutor(1) as beside:
            digest = beside.submit(digest_of, path)
            reading = _read(path, jobs, most_bytes)
            return _profile(path, reading, digest.result())
    except IsADirectoryError:
        raise UnreadableTrace(f"{path}: is a directory, no trace") from None
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror or error})") from None


def ingest_all(
    paths: Iterable[Path],
    *,
    jobs: int = 1,
    strict: bool = False,
    say: Callable[[str], None] = lambda line: None,
    most_bytes: int = MOST_BYTES,
) -> Ingested:
    """Many files, and all traces in directories, by `jobs` processes side by side.

    `say` gets a line for each file that cannot be read, each complaint, and each file left out. Raises
    UsageError if no path is given; if `strict`, UnreadableTrace at the first file that cannot be read and at
    a directory without traces.
    """
    files, failures = _files(paths, say)
    if strict and failures:
        raise UnreadableTrace(failures[0].reason)
    for failure in failures:
        say(failure.reason)
    profiles = []
    for path, found in zip(files, _each(files, jobs, most_bytes), strict=True):
        if isinstance(found, Profile):
            profiles.append(found)
            for complaint in found.complaints:
                say(f"{path}: {complaint}")
        elif strict:
            raise UnreadableTrace(found)
        else:
            failures.append(Failure(path, found))
            say(found)
    return Ingested(merge(profiles), tuple(failures))


def _read(path: Path, jobs: int, most_bytes: int) -> Reading:
    first = head(path)
    if not first:
        raise UnreadableTrace(f"{path}: is empty")
    if kineto.sniff(first, path):
        return kineto.read(path, jobs, most_bytes)
    for reader in READERS:
        if reader.sniff(first, path):
            found: Reading = reader.read(path)
            return found
    raise UnreadableTrace(f"{path}: is of no known format: {KNOWN}")


def _profile(path: Path, reading: Reading, digest: str) -> Profile:
    launches = reading.launches
    entries, devices = launches if isinstance(launches, Condensed) else condense(launches)
    return Profile(
        file=path.name.encode(errors="replace").decode(),
        format=reading.format,
        digest=digest,
        hardware=reading.hardware,
        rank=reading.rank,
        world_size=reading.world_size,
        devices=devices,
        entries=entries,
        complaints=reading.complaints,
    )


def _files(paths: Iterable[Path], say: Callable[[str], None]) -> tuple[list[Path], list[Failure]]:
    """The files meant, each once, in the order given and by name within a directory; directories without any.

    Raises UsageError if no path is given.
    """
    found: dict[Path, Path] = {}
    empty: list[Failure] = []
    for path in paths:
        inner = _within(path, say) if path.is_dir() else [path]
        if not inner:
            wanted = ", ".join("*" + suffix for suffix in SUFFIXES)
            empty.append(Failure(path, f"{path}: holds no file {wanted}"))
        for file in inner:
            found.setdefault(file.resolve(), file)
    if not found and not empty:
        raise UsageError("no traces: name files, or directories of them")
    return list(found.values()), empty


def _within(directory: Path, say: Callable[[str], None]) -> list[Path]:
    """Traces in a directory and those below it; not one that SGLang merged of others beside it."""
    files = sorted(file for file in directory.rglob("*") if file.name.endswith(SUFFIXES) and file.is_file())
    kept = []
    for file in files:
        run = file.name.removesuffix(".trace.json.gz").removeprefix("merged-")
        if file.name == f"merged-{run}.trace.json.gz" and _parts(run, file.parent, files):
            say(f"{file}: left out: it repeats traces of single ranks beside it")
        else:
            kept.append(file)
    return kept


def _parts(run: str, directory: Path, files: list[Path]) -> bool:
    """Whether there are traces of single ranks of a run (sglang/srt/utils/profile_merger.py names them)."""
    return any(file.parent == directory and file.name.startswith(f"{run}-TP-") for file in files)


def _each(files: list[Path], jobs: int, most_bytes: int) -> Iterator[Profile | str]:
    """The profile of each file, or the line that says why there is none."""
    if jobs < 2 or len(files) < 2:
        for path in files:
            yield _tried(path, jobs, most_bytes)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(files)), mp_context=context) as pool:
        coming = [pool.submit(_tried, path, 1, most_bytes) for path in files]
        try:
            for path, future in zip(files, coming, strict=True):
                try:
                    yield future.result()
                except BrokenProcessPool:  # a process died, and took with it what others were to read
                    yield _alone(path, most_bytes)
        finally:
            pool.shutdown(cancel_futures=True)


def _alone(path: Path, most_bytes: int) -> Profile | str:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(_tried, path, 1, most_bytes).result()
        except BrokenProcessPool:
            return f"{path}: the process that read it died, as for lack of memory"


def _tried(path: Path, jobs: int, most_bytes: int) -> Profile | str:
    try:
        return ingest(path, jobs=jobs, most_bytes=most_bytes)
    except AtrexError as error:
        return str(error)
