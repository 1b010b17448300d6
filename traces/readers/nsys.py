"""Nsight Systems: the .sqlite files that `nsys export --type sqlite` writes.

Tables and columns are those of NVIDIA's "SQLite Schema Reference" (Nsight Systems User Guide, exporter), of
schema 2.x and 3.x. A table is made only where something was recorded, and columns come and go with versions:
what is there is looked up. Times are nanoseconds.

A launch's annotations are the NVTX ranges that were open on its thread when the CUDA call that launched it
began; call and launch share a correlation id within a process. Ranges of torch's `emit_nvtx` name the
operation, its callers and the shapes. `--cuda-graph-trace=graph` records one launch for a whole graph: the
graph is then the kernel.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas

from traces.profile import UNKNOWN
from traces.readers import Reading, UnreadableTrace
from traces.readers.database import MISSING, Database, integers, opened
from traces.readers.nsys_calls import CALLS, PROCESS, RANGES, STRINGS, around, strings
from traces.readers.ranges import Integers

MAGIC = b"SQLite format 3\x00"
KERNELS, COPIES, FILLS, GRAPHS = (
    f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
)
GPUS, CUDA_DEVICES = "TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"
ACTIVITIES = (KERNELS, COPIES, FILLS, GRAPHS)
TABLES = (*ACTIVITIES, CALLS, RANGES, STRINGS, GPUS, CUDA_DEVICES)

NAMES = ("demangledName", "shortName", "mangledName")  # of a kernel, as ids of strings; the best one first
LAUNCH = ("start", "end", "deviceId", "streamId", "globalPid", "correlationId", "graphNodeId")
NEEDED = ("start", "end", "deviceId", "streamId")

# CUpti_ActivityMemcpyKind, and nsys's own three for unified memory (ENUM_CUDA_MEMCPY_OPER).
COPY_KINDS = {
    1: "Host-to-Device",
    2: "Device-to-Host",
    3: "Host-to-Array",
    4: "Array-to-Host",
    5: "Array-to-Array",
    6: "Array-to-Device",
    7: "Device-to-Array",
    8: "Device-to-Device",
    9: "Host-to-Host",
    10: "Peer-to-Peer",
    11: "Unified Host-to-Device",
    12: "Unified Device-to-Host",
    13: "Unified Device-to-Device",
}
NAMELESS = "kernel without a name"
LATEST = 1 << 62  # nanoseconds: a later time is none, and differences of earlier ones fit
PROCESS_MASK = (1 << 24) - 1  # of a process's number within globalPid, once shifted
LONGEST = 24 * 3600 * 10**9  # nanoseconds of one launch


def sniff(head: bytes, path: Path) -> bool:
    """Whether it is an SQLite file; `read` says if it is no export of nsys."""
    return head.startswith(MAGIC)


def read(path: Path) -> Reading:
    """The launches of an export. Raises UnreadableTrace."""
    with opened(path, TABLES) as base:
        _check(base)
        complaints: list[str] = []
        launches = pandas.concat(
            [_activities(base, table) for table in ACTIVITIES if table in base.tables], ignore_index=True
        )
        launches = _usable(launches, complaints)
        if launches.empty:
            raise UnreadableTrace(f"{path}: holds no GPU launch; record with nsys profile --trace=cuda,nvtx")
        launches = _without_doubled_graphs(launches)
        _name(base, launches, complaints)
        table = _launch_table(base, launches, complaints)
        return Reading("nsys", table, hardware=_hardware(base, table["device"]), complaints=tuple(complaints))


def _check(base: Database) -> None:
    """Whether it is an export with anything of a GPU in it."""
    if any(base.rows("SELECT 1 FROM sqlite_master WHERE name LIKE 'rocpd%' LIMIT 1")):
        hint = "rocpd convert --output-format csv makes what is read"
        raise UnreadableTrace(f"{base.path}: a rocpd database of ROCm, which is not read: {hint}")
    there = [table for table in ACTIVITIES if table in base.tables]
    if not there:
        hint = "no table CUPTI_ACTIVITY_KIND_KERNEL, MEMCPY, MEMSET or GRAPH_TRACE"
        raise UnreadableTrace(f"{base.path}: no Nsight Systems export of GPU work: {hint}")
    for table in there:
        if absent := [name for name in NEEDED if name not in base.tables[table]]:
            raise UnreadableTrace(f"{base.path}: {table} has no column {absent[0]}: export it again")


def _activities(base: Database, table: str) -> pandas.DataFrame:
    """One table of launches, in integers."""
    name = {KERNELS: best_name(base), COPIES: "copyKind", GRAPHS: "graphId"}.get(table, "streamId")
    kind = {KERNELS: "kernel", COPIES: "copy", FILLS: "fill", GRAPHS: "graph"}[table]
    pieces = []
    for batch in base.select(table, (*LAUNCH, name)):
        columns = dict(zip((*LAUNCH, "name"), zip(*batch, strict=True), strict=True))
        pieces.append(
            pandas.DataFrame({key: integers(column, len(batch)) for key, column in columns.items()})
        )
    frame = pandas.concat(pieces) if pieces else pandas.DataFrame(columns=[*LAUNCH, "name"], dtype=np.int64)
    return frame.assign(kind=kind)


def best_name(base: Database) -> str:
    found = [name for name in NAMES if name in base.tables.get(KERNELS, ())]
    return found[0] if found else NAMES[0]


def _usable(launches: pandas.DataFrame, complaints: list[str]) -> pandas.DataFrame:
    """Launches with times and a device; the others are counted."""
    start, end = launches["start"], launches["end"]
    reasons = {
        "without a start or an end": (start == MISSING) | (end == MISSING),
        "at times past any clock": (start.abs() > LATEST) | (end.abs() > LATEST),
        "that end before they start": end < start,
        "longer than a day": end - start > LONGEST,
        "without a device": launches["deviceId"] < 0,
    }
    good = np.ones(len(launches), bool)
    for reason, bad in reasons.items():
        if count := int((bad & good).sum()):
            complaints.append(f"{count} launches {reason}: left out")
        good &= ~bad.to_numpy(bool)
    return launches[good].reset_index(drop=True)


def _without_doubled_graphs(launches: pandas.DataFrame) -> pandas.DataFrame:
    """A graph whose kernels were recorded is not counted beside them."""
    keys = ["globalPid", "correlationId"]
    is_graph = launches["kind"] == "graph"
    nodes = pandas.MultiIndex.from_frame(launches.loc[~is_graph & (launches["graphNodeId"] > 0), keys])
    doubled = is_graph & pandas.MultiIndex.from_frame(launches[keys]).isin(nodes)
    return launches[~doubled].reset_index(drop=True)


def _name(base: Database, launches: pandas.DataFrame, complaints: list[str]) -> None:
    """Put the kernels' names into column `kernel`."""
    of_kernels = launches["kind"] == "kernel"
    texts = dict(strings(base, f'SELECT "{best_name(base)}" FROM {KERNELS}')) if of_kernels.any() else {}
    numbers, inverse = np.unique(launches["name"].to_numpy(), return_inverse=True)
    names = {
        "kernel": [texts.get(int(number), NAMELESS) for number in numbers],
        "copy": [f"[CUDA memcpy {COPY_KINDS.get(int(number), 'of unknown kind')}]" for number in numbers],
        "fill": ["[CUDA memset]"] * len(numbers),
        "graph": [f"CUDA graph {max(int(number), 0)}" for number in numbers],
    }
    kernel = np.empty(len(launches), object)
    for kind, found in names.items():
        own = (launches["kind"] == kind).to_numpy(bool)
        kernel[own] = np.array(found, object)[inverse[own]]
    launches["kernel"] = kernel
    if count := int((kernel == NAMELESS).sum()):
        complaints.append(f"{count} kernels whose names are not in {STRINGS}: counted as «{NAMELESS}»")


def _launch_table(base: Database, launches: pandas.DataFrame, complaints: list[str]) -> pandas.DataFrame:
    """The table that `traces.condense` takes."""
    graph = ((launches["kind"] == "graph") | (launches["graphNodeId"] > 0)).to_numpy(bool)
    start, end = launches["start"].to_numpy(), launches["end"].to_numpy()
    columns = around(base, launches, complaints)
    for name, unknown in (("operator", UNKNOWN), ("stack", "[]"), ("shapes", UNKNOWN)):
        columns[name][graph] = unknown
    return pandas.DataFrame(
        {
            "kind": launches["kind"].replace("graph", "kernel"),
            "kernel": launches["kernel"],
            "device": _physical(base, launches),
            "stream": launches["streamId"],
            "start_us": (start - start.min()) / 1000.0,
            "duration_us": (end - start) / 1000.0,
            "module": UNKNOWN,
            "dtypes": UNKNOWN,
            "scalars": UNKNOWN,
            "graph": graph,
            **columns,
        }
    )


def _physical(base: Database, launches: pandas.DataFrame) -> Integers:
    """Numbers of the GPUs themselves: CUDA's own differ where processes see different ones."""
    device = launches["deviceId"].to_numpy().copy()
    if not base.has(CUDA_DEVICES, "gpuId", "cudaId", "pid"):
        return device
    process = (launches["globalPid"].to_numpy() >> PROCESS) & PROCESS_MASK
    for batch in base.select(CUDA_DEVICES, ("gpuId", "cudaId", "pid")):
        for gpu, cuda, pid in batch:
            if type(gpu) is int and gpu >= 0:
                device[(launches["deviceId"] == cuda).to_numpy(bool) & (process == pid)] = gpu
    return device


def _hardware(base: Database, devices: pandas.Series[int]) -> str:
    """The names of the GPUs that worked."""
    if not base.has(GPUS, "id", "name"):
        return UNKNOWN
    used = set(devices.unique().tolist())
    rows = [row for batch in base.select(GPUS, ("id", "name")) for row in batch]
    return ", ".join(sorted({str(name) for number, name in rows if number in used and name}))
