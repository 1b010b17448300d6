"""Traces of torch.profiler: Kineto's JSON, plain or gzipped, as torch, vLLM and SGLang write it.

An activity of a device and the runtime or driver call that launched it share a correlation id. The operation
that launched it is the innermost one open on the call's thread at the time of the call; so are its module,
where Python stacks were recorded, and its annotations, the `record_function` ranges of the host. (An
"External id" is looked at only where no call was recorded: operations and annotations count theirs apart.)
`gpu_user_annotation` rows are ranges drawn on the device's time line, no activities. Kernels of a replayed
graph have the graph's launch for a call, and so neither operation nor shapes.

A trace that SGLang merged of several ranks is read rank by rank, as the label before its processes says.
"""

from __future__ import annotations

import gc
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas
from numpy.typing import NDArray

from atrex.errors import EnvironmentProblem
from traces.readers import Reading, UnreadableTrace
from traces.readers.kineto_around import DEEPEST, Calls, TooDeep
from traces.readers.kineto_columns import MOST_TEXT, NONE, Columns, Reader, TooMuchText
from traces.readers.kineto_events import SEAMS, Broken, Events
from traces.readers.kineto_store import Part, Tables, Writer
from traces.readers.packed import MOST_BYTES, is_packed, pieces

ROWS = 1 << 17  # kept in memory before they are written down
SMALLEST_PART = 1 << 26  # bytes that are worth a process of their own
SEAM_WITHIN = 1 << 22  # bytes in which a seam between two events is looked for
KINDS = ("kernel", "copy", "fill")


@dataclass(frozen=True, slots=True)
class Whole:
    """A file, read: its parts in order, and what stands beside its events."""

    parts: tuple[Part, ...]
    header: dict[str, Any]
    recoded: int


def sniff(head: bytes, path: Path) -> bool:
    """Whether it is JSON; `read` says if it is no trace."""
    return head.removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")[:1] in (b"{", b"[")


def read(path: Path, jobs: int = 1, most_bytes: int = MOST_BYTES) -> Reading:
    """The launches of a trace; a large plain file in `jobs` parts side by side. Raises UnreadableTrace.

    Events that cannot be used are counted in the complaints; a file that is cut short is an error.
    """
    with tempfile.TemporaryDirectory(prefix="atrex-kineto-") as name:
        try:
            whole = _whole(path, Path(name), jobs, most_bytes)
            return _reading(path, whole, Path(name))
        except duckdb.Error as error:
            what = str(error).partition("\n")[0]
            raise EnvironmentProblem(f"{path}: the tables of the trace cannot be kept: {what}") from None
        except Broken as error:
            what = f"{error.what} at byte {error.at}"
            raise UnreadableTrace(f"{path}: no trace of torch.profiler: {what}") from None
        except TooMuchText:
            what = f"its names and shapes are more than {MOST_TEXT >> 20} MiB of different texts"
            raise UnreadableTrace(f"{path}: {what}: no trace of a model") from None
        except TooDeep:
            what = f"more than {DEEPEST} operations or functions are open at once on a thread"
            raise UnreadableTrace(f"{path}: {what}: no trace of a program") from None


def _whole(path: Path, directory: Path, jobs: int, most: int) -> Whole:
    cuts = _cuts(path, jobs, most)
    if cuts:
        try:
            return _in_parts(path, directory, cuts)
        except (Broken, BrokenProcessPool):
            pass  # spoilt, or cut at no seam, or short of memory: reading it in one go says which
    events = Events(pieces(path, most=most))
    part = _part(events, directory / "all.duckdb")
    if not events.found:
        raise Broken(0, "no traceEvents")
    return Whole((part,), events.header, events.recoded)


def _cuts(path: Path, jobs: int, most: int) -> list[int]:
    """Bytes at which a plain file can be cut into one part a job: each is the comma between two events."""
    size = path.stat().st_size
    if is_packed(path) or jobs < 2 or not 2 * SMALLEST_PART <= size <= most:
        return []
    count = min(jobs, size // SMALLEST_PART)
    cuts = []
    with path.open("rb") as file:
        for number in range(1, count):
            file.seek(size * number // count)
            window = file.read(SEAM_WITHIN)
            if (seam := window.find(SEAMS[0])) < 0:
                return []
            cuts.append(file.tell() - len(window) + window.index(b"}", seam) + 1)
    return cuts


def _in_parts(path: Path, directory: Path, cuts: list[int]) -> Whole:
    """The first part in this process, the others beside it. Raises Broken if one is no list of events.

    A list that can be read in parts between some commas can be read whole: cuts need no other proof.
    """
    bounds = [0, *cuts, path.stat().st_size]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(cuts), mp_context=context) as pool:
        others = [
            pool.submit(_piece, path, directory / f"{number}.duckdb", bounds[number], bounds[number + 1])
            for number in range(1, len(bounds) - 1)
        ]
        first = _piece(path, directory / "0.duckdb", 0, cuts[0])
        found = [first, *(other.result() for other in others)]
    header = {name: value for piece in found for name, value in piece.header.items()}
    return Whole(tuple(part for piece in found for part in piece.parts), header, 0)


def _piece(path: Path, database: Path, start: int, stop: int) -> Whole:
    """A part of a file, from and to a comma between events, or from its start, or to its end."""
    opening = [b'{"traceEvents":['] if start else []
    ending = [b"]}"] if stop < path.stat().st_size else []
    middle = pieces(path, start + bool(start), stop)
    events = Events(chain(opening, middle, ending), place=start)
    part = _part(events, database)
    if not events.found or events.recoded:
        raise Broken(start, "no plain list of events")
    return Whole((part,), events.header, 0)


def _part(events: Events, database: Path) -> Part:
    """Write the events that count to a database. Raises Broken and TooMuchText."""
    reader = Reader()
    with closing(Writer(database)) as writer, _without_collector():
        for batch in events.batches():
            reader.take(batch)
            if reader.waiting > ROWS:
                writer.write(reader.tables())
        writer.write(reader.tables())
    return Part(database, reader.listed_texts(), tuple(reader.threads), reader.known, dict(reader.unusable))


@contextmanager
def _without_collector() -> Iterator[None]:
    """Events are a tree each: looking for cycles in millions of them would take most of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _reading(path: Path, whole: Whole, directory: Path) -> Reading:
    if not sum(part.known for part in whole.parts):
        raise UnreadableTrace(f"{path}: no trace of torch.profiler: it wrote none of the events")
    with closing(Tables(whole.parts, directory)) as tables:
        found = tables.launches()
        calls, call_of = _calls(found)
        for spans in tables.spans(np.unique(calls.threads).astype(np.int32)):
            calls.look_at(spans)
        complaints = _complaints(whole, found, tables.shared_correlations())
        launches = _table(found, calls, call_of, tables)
    hardware, rank, world_size = _about(whole.header)
    return Reading("kineto", launches, hardware, rank, world_size, complaints)


def _calls(found: Columns) -> tuple[Calls, NDArray[np.int64]]:
    """The different calls of some launches, by thread and time, and which of them launched each."""
    asked = pandas.DataFrame({"thread": found["caller"], "at": found["called"]})
    groups = asked.groupby(["thread", "at"], sort=True)
    keys = groups.size().reset_index()
    threads = keys["thread"].to_numpy(np.int64)
    call_of: NDArray[np.int64] = np.asarray(groups.ngroup(), np.int64)
    return Calls(threads, keys["at"].to_numpy(np.float64)), call_of


def _table(found: Columns, calls: Calls, call_of: NDArray[np.int64], tables: Tables) -> pandas.DataFrame:
    """The launch table."""
    texts, graph = tables.texts, found["graph"].astype(bool)
    module = np.where(calls.module > 0, calls.module, calls.function)
    columns: dict[str, Any] = {
        "kind": _texts(found["kind"], list(KINDS)),
        "kernel": _texts(found["name"], texts),
        "device": _devices(found, tables.labels),
        "stream": found["stream"],
        "start_us": found["start"],
        "duration_us": found["duration"],
        "module": _texts(module[call_of], texts),
        "graph": graph,
    }
    # A replayed kernel's operation is not the one that replayed the graph.
    for name in ("operator", "shapes", "dtypes", "scalars"):
        columns[name] = _texts(np.where(graph, 0, getattr(calls, name)[call_of]), texts)
    stacks = np.where(graph, 0, calls.stack[call_of])
    columns["stack"] = _categorical(stacks, lambda path: calls.stacks.text(path, texts))
    notes = calls.notes[call_of]
    columns["annotations"] = _categorical(notes, lambda path: calls.annotations.text(path, texts))
    return pandas.DataFrame(columns)


def _texts(codes: NDArray[Any], texts: list[str]) -> pandas.Series[Any]:
    return _categorical(codes, texts.__getitem__)


def _categorical(codes: NDArray[Any], text: Callable[[int], str]) -> pandas.Series[Any]:
    """Numbers as their texts; numbers of one text become one."""
    used, places = np.unique(codes, return_inverse=True)
    categories: dict[str, int] = {}
    own = [categories.setdefault(text(code), len(categories)) for code in used.tolist()]
    kind = pandas.CategoricalDtype(list(categories))
    return pandas.Series(pandas.Categorical.from_codes(np.array(own, np.int64)[places], dtype=kind))


def _devices(found: Columns, labels: list[str]) -> NDArray[np.int64]:
    """Numbers of devices; ranks of a merged trace that give different devices one number get others."""
    devices: NDArray[np.int64] = found["device"].astype(np.int64)
    pairs, places = np.unique(np.stack([found["job"], devices]), axis=1, return_inverse=True)
    if len(np.unique(pairs[1])) < len(pairs[1]):
        return places.reshape(-1).astype(np.int64)
    return devices


def _complaints(whole: Whole, found: Columns, shared: int) -> tuple[str, ...]:
    unusable: Counter[str] = Counter()
    for part in whole.parts:
        unusable.update(part.unusable)
    said = [f"{count} {what}: left out" for what, count in sorted(unusable.items())]
    if whole.recoded:
        said.append("some texts hold bytes that are no UTF-8: replaced")
    if shared:
        said.append(f"{shared} correlation ids are of several calls: the latest before a launch is taken")
    if orphans := int((found["caller"] == NONE).sum()):
        said.append(f"{orphans} launches have no recorded call: their operations are unknown")
    if not len(found["caller"]):
        said.append("no launch of a device: record with ProfilerActivity.CUDA")
    return tuple(said)


def _about(header: dict[str, Any]) -> tuple[str, int | None, int | None]:
    """Hardware, rank and number of ranks, as far as the header has them in the expected form."""
    devices, job = header.get("deviceProperties"), header.get("distributedInfo")
    named = [device for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    known = sorted({device["name"] for device in named if isinstance(device.get("name"), str)})
    job = job if isinstance(job, dict) else {}
    rank, size = job.get("rank"), job.get("world_size")
    return (
        ", ".join(known),
        rank if type(rank) is int and rank >= 0 else None,
        size if type(size) is int and size >= 1 else None,
    )
