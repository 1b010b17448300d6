"""rocprofv3 of ROCm: the CSV files of one process, as `rocprofv3 --output-format csv` writes them.

The file to give is PREFIX_kernel_trace.csv. Those beside it with the same prefix are read, too:
memory_copy_trace.csv (copies), marker_api_trace.csv (ROCTX ranges), hip_api_trace.csv (which call launched
what, and when: without it no range can be said to hold a kernel), agent_info.csv (what the devices are).
Columns are those of ROCprofiler-SDK's "Using rocprofv3", ROCm 6.2 to 7.x: streams, threads and agents' names
for their numbers came with time. Times are nanoseconds.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas

from traces.profile import UNKNOWN
from traces.readers import Reading, UnreadableTrace
from traces.readers.database import MISSING
from traces.readers.ranges import Integers, Ranges, columns_of
from traces.readers.tables import header_of, integers, pieces

KERNELS, COPIES, MARKERS, CALLS, AGENTS = (
    f"{name}.csv"
    for name in ("kernel_trace", "memory_copy_trace", "marker_api_trace", "hip_api_trace", "agent_info")
)
TIMES = ("start_timestamp", "end_timestamp")
NEEDED = {KERNELS: ("agent_id", "kernel_name", *TIMES), COPIES: ("direction", *TIMES)}
COPY_ENGINE = -1  # the stream of copies where none is recorded
NO_RANGE = "roctxGetThreadId"  # a call that is written among the ranges
# Where a copy counts: the device that it fills, or empties for the host.
COPY_DEVICE = {
    "HOST_TO_DEVICE": "destination_agent_id",
    "DEVICE_TO_DEVICE": "destination_agent_id",
    "DEVICE_TO_HOST": "source_agent_id",
}
LONGEST = 24 * 3600 * 10**9  # nanoseconds of one launch
SEEN = "MARKER_CORE"  # the domains of ranges; MARKER_CONTROL and others are calls of the profiler's own


def sniff(head: bytes, path: Path) -> bool:
    """Whether it is one of rocprofv3's traces; `read` says which of them to give."""
    names = {name.lower() for name in header_of(head)}
    return set(TIMES) <= names and bool(names & {"kernel_name", "direction", "domain", "kind"})


def read(path: Path) -> Reading:
    """The launches of a process. Raises UnreadableTrace."""
    if not path.name.endswith(KERNELS):
        raise UnreadableTrace(f"{path}: give the file that ends in {KERNELS}: the others are read with it")
    complaints: list[str] = []
    frames = [_launches(path, KERNELS, complaints)]
    if (copies := beside(path, COPIES)).is_file():
        frames.append(_launches(copies, COPIES, complaints))
    launches = pandas.concat(frames, ignore_index=True)
    if launches.empty:
        raise UnreadableTrace(f"{path}: holds no launch; record with rocprofv3 --kernel-trace")
    start, end = launches["start"].to_numpy(), launches["end"].to_numpy()
    table = pandas.DataFrame(
        {
            **{name: launches[name] for name in ("kind", "kernel", "device", "stream")},
            "start_us": (start - start.min()) / 1000.0,
            "duration_us": (end - start) / 1000.0,
            "module": UNKNOWN,
            "dtypes": UNKNOWN,
            "scalars": UNKNOWN,
            "graph": False,
            **_around(path, launches, complaints),
        }
    )
    return Reading("rocprof", table, hardware=_hardware(path, table["device"]), complaints=tuple(complaints))


def beside(path: Path, name: str) -> Path:
    """The file of the same process that holds something else."""
    return path.with_name(path.name.removesuffix(KERNELS) + name)


def _launches(path: Path, which: str, complaints: list[str]) -> pandas.DataFrame:
    """Kernels or copies that can be used; the others are counted."""
    columns = ["kind", "kernel", "device", "stream", "start", "end", "correlation"]
    found, seen = [pandas.DataFrame(columns=columns)], 0
    for piece in pieces(path):
        if absent := [name for name in NEEDED[which] if name not in piece.columns]:
            raise UnreadableTrace(f"{path}: no column {absent[0]}; is it a file of rocprofv3?")
        seen += len(piece)
        found.append(_kernels(piece) if which == KERNELS else _copies(piece))
    launches = pandas.concat(found, ignore_index=True)
    numbers = ["device", "stream", "start", "end", "correlation"]
    launches = launches.astype(dict.fromkeys(numbers, np.int64))
    length = launches["end"] - launches["start"]
    good = (launches["start"] >= 0) & (length >= 0) & (length <= LONGEST) & (launches["device"] >= 0)
    if dropped := seen - int(good.sum()):
        why = "no device of the GPUs, or no start and end that a launch can have"
        complaints.append(f"{dropped} lines of {which} with {why}: left out")
    return launches[good]


def _kernels(piece: pandas.DataFrame) -> pandas.DataFrame:
    stream = "stream_id" if "stream_id" in piece.columns else "queue_id"
    names = piece["kernel_name"]
    fills = names.str.contains("rocclr_fillBuffer", regex=False)
    copies = names.str.contains("rocclr_copyBuffer", regex=False)
    kind = np.select([fills, copies], ["fill", "copy"], "kernel")  # HIP's own, done by a kernel
    return _common(
        piece, kind=kind, kernel=names, device=agents(piece["agent_id"]), stream=_column(piece, stream, 0)
    )


def _copies(piece: pandas.DataFrame) -> pandas.DataFrame:
    """Copies; one between places of the host is no device's work."""
    direction = piece["direction"].str.removeprefix("MEMORY_COPY_")
    device = np.full(len(piece), MISSING, np.int64)
    for name, column in COPY_DEVICE.items():
        own = (direction == name).to_numpy(bool)
        if column in piece.columns:
            device[own] = agents(piece.loc[own, column])
    stream = _column(piece, "stream_id", COPY_ENGINE)
    return _common(piece, kind="copy", kernel="MEMORY_COPY_" + direction, device=device, stream=stream)


def _common(piece: pandas.DataFrame, **columns: object) -> pandas.DataFrame:
    start, end = (integers(piece[name], MISSING) for name in TIMES)
    usable = (start >= 0) & (end >= 0)
    times = {"start": np.where(usable, start, MISSING), "end": np.where(usable, end, MISSING)}
    correlation = _column(piece, "correlation_id", MISSING)
    return pandas.DataFrame({**columns, **times, "correlation": correlation}, index=piece.index)


def _column(piece: pandas.DataFrame, name: str, missing: int) -> Integers:
    there = name in piece.columns
    return integers(piece[name], missing) if there else np.full(len(piece), missing, np.int64)


def agents(column: pandas.Series[str]) -> Integers:
    """The number in an agent's name: 4, "Agent 4" or "GPU 4", by version and --agent-index."""
    return integers(column.str.replace(r"^(?:Agent|GPU)[ -]", "", regex=True), MISSING)


def _around(path: Path, launches: pandas.DataFrame, complaints: list[str]) -> dict[str, object]:
    """Operation, stack, shapes and annotations of every launch."""
    ranges = Ranges()
    threads = times = np.full(len(launches), MISSING, np.int64)
    if not (markers := beside(path, MARKERS)).is_file():
        complaints.append(
            f"no {MARKERS} beside it: operations and steps are unknown (rocprofv3 --marker-trace)"
        )
    elif not beside(path, CALLS).is_file():
        complaints.append(f"no {CALLS} beside it: no range can be joined to a kernel (rocprofv3 --hip-trace)")
    else:
        threads, times = _calls(beside(path, CALLS), launches["correlation"].to_numpy(), complaints)
        _collect(markers, ranges)
    codes, contexts = ranges.around(threads, times)
    if ranges.dropped:
        complaints.append(f"{ranges.dropped} ranges within very many others: left out")
    return dict(columns_of(codes, contexts))


def _api(path: Path) -> list[pandas.DataFrame]:
    """An API trace: thread, start, end, correlation, function."""
    found = []
    for piece in pieces(path):
        if absent := [name for name in ("function", "thread_id", *TIMES) if name not in piece.columns]:
            raise UnreadableTrace(f"{path}: no column {absent[0]}; is it a file of rocprofv3?")
        frame = _common(piece, thread=_column(piece, "thread_id", MISSING), function=piece["function"])
        domain = piece["domain"] if "domain" in piece.columns else UNKNOWN
        frame = frame.assign(domain=domain)
        found.append(frame[(frame["start"] >= 0) & (frame["thread"] >= 0)])
    return found


def _calls(path: Path, correlations: Integers, complaints: list[str]) -> tuple[Integers, Integers]:
    """Thread and start of the call of each launch."""
    wanted = np.unique(correlations[correlations != MISSING])
    frames = [frame[frame["correlation"].isin(wanted)] for frame in _api(path)]
    if not frames:
        return (np.full(len(correlations), MISSING, np.int64),) * 2
    calls = pandas.concat(frames).sort_values("start", kind="stable").drop_duplicates("correlation")
    place = pandas.Index(calls["correlation"]).get_indexer(pandas.Index(correlations))
    if count := int((place < 0).sum()):
        complaints.append(f"{count} launches whose HIP call was not recorded: their ranges are unknown")
    thread, start = (
        np.append(calls[name].to_numpy(np.int64), MISSING)[place] for name in ("thread", "start")
    )
    return thread, start


def _collect(path: Path, ranges: Ranges) -> None:
    """The ROCTX ranges; a mark is one that ends as it starts. A range of the whole process has no thread."""
    for frame in _api(path):
        own = frame[frame["domain"].str.startswith(SEEN) & (frame["function"] != NO_RANGE)]
        codes = np.fromiter((ranges.code(str(text)) for text in own["function"]), np.int64, len(own))
        columns = [own[name].to_numpy(np.int64) for name in ("thread", "start", "end")]
        ranges.add(np.stack([*columns, codes]))


def _hardware(path: Path, devices: pandas.Series[int]) -> str:
    """The names of the GPUs that worked; all GPUs' if their numbers are not those of the trace."""
    if not (about := beside(path, AGENTS)).is_file():
        return UNKNOWN
    names: dict[int, str] = {}
    for piece in pieces(about):
        if not {"agent_type", "name"} <= set(piece.columns):
            raise UnreadableTrace(f"{about}: no columns agent_type and name; is it a file of rocprofv3?")
        gpus = piece[piece["agent_type"].str.upper() == "GPU"]
        numbers = _column(
            gpus, "logical_node_id" if "logical_node_id" in gpus.columns else "node_id", MISSING
        )
        product = gpus["product_name"] if "product_name" in gpus.columns else gpus["name"]
        names.update(zip(numbers.tolist(), product.where(product != "", gpus["name"]), strict=True))
    used = [names[number] for number in sorted(set(devices.unique().tolist())) if number in names]
    return ", ".join(sorted(set(used or names.values())))
