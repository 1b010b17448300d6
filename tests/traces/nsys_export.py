"""Exports of Nsight Systems, made from a recorded Kineto trace: nsys itself runs on no machine of the tests.

Tables and columns are those that NVIDIA's "SQLite Schema Reference" gives for the releases in `VERSIONS`.
Host operations become the NVTX ranges that torch's emit_nvtx makes of them; sums can so be held against the
trace.
"""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

RECORDED = Path(__file__).parent / "recorded"

Version = Literal["2023.2", "2024.4", "2025.3"]
VERSIONS: dict[Version, str] = {"2023.2": "2.13.1", "2024.4": "3.11.0", "2025.3": "3.20.4"}
Event = dict[str, Any]

_LAUNCH = (
    "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL"
)
_GREEN = {"2023.2": "", "2024.4": ", greenContextId INTEGER", "2025.3": ", greenContextId INTEGER"}
_REST = ", streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER"


def events_of(name: str) -> list[Event]:
    """The events of a recorded trace."""
    found: list[Event] = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))[
        "traceEvents"
    ]
    return found


def schema(version: Version) -> str:
    """The tables of a release."""
    launch = _LAUNCH + _GREEN[version] + _REST
    names = ", mangledName INTEGER" if version != "2023.2" else ""
    graph = ", graphId INTEGER" if version == "2025.3" else ""
    registered = ", jsonTextId INTEGER, jsonText TEXT" if version != "2023.2" else ""
    physical = (
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER NOT NULL, cudaId INTEGER NOT NULL,"
        " pid INTEGER NOT NULL, uuid TEXT, numMultiprocessors INTEGER NOT NULL);"
    )
    return f"""
    CREATE TABLE META_DATA_EXPORT (name TEXT NOT NULL, value TEXT);
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT);
    CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INTEGER, devStateName TEXT, name TEXT NOT NULL,
      nameEnum INTEGER NOT NULL, value TEXT NOT NULL);
    CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
    CREATE TABLE ThreadNames (nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({launch}, demangledName INTEGER NOT NULL,
      shortName INTEGER NOT NULL{names}, gridX INTEGER NOT NULL, blockX INTEGER NOT NULL,
      graphNodeId INTEGER{graph});
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY ({launch}, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL,
      graphNodeId INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET ({launch}, value INTEGER NOT NULL, bytes INTEGER NOT NULL,
      graphNodeId INTEGER);
    CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE ({launch}, graphId INTEGER NOT NULL,
      graphExecId INTEGER NOT NULL);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
      eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL,
      returnValue INTEGER NOT NULL, callchainId INTEGER);
    CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
      rangeId INTEGER, category INTEGER, color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER,
      textId INTEGER, domainId INTEGER{registered});
    {physical if version != "2023.2" else ""}
    """


class Export:
    """An export under construction."""

    def __init__(self, path: Path, version: Version) -> None:
        self.version = version
        self.connection = sqlite3.connect(path)
        self.connection.executescript(schema(version))
        self.texts: dict[str, int] = {}
        about = [("EXPORT_SCHEMA_VERSION", VERSIONS[version]), ("EXPORT_PRODUCT_VERSION", version)]
        self.connection.executemany("INSERT INTO META_DATA_EXPORT VALUES (?, ?)", about)

    def text(self, value: str) -> int:
        """The id of a string."""
        if value not in self.texts:
            self.texts[value] = len(self.texts) + 1
            self.insert("StringIds", id=self.texts[value], value=value)
        return self.texts[value]

    def insert(self, table: str, **values: object) -> None:
        """Add a row."""
        names = ", ".join(f'"{name}"' for name in values)
        marks = ", ".join("?" * len(values))
        self.connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(values.values()))

    def kernel(self, name: str, **values: object) -> None:
        """Add a kernel."""
        named = {"demangledName": self.text(name), "shortName": self.text(name.partition("<")[0])}
        if self.version != "2023.2":
            named["mangledName"] = self.text("_Z" + name)
        rest = {"contextId": 1, "gridX": 1, "blockX": 128}
        self.insert("CUPTI_ACTIVITY_KIND_KERNEL", **{**rest, **named, **values})

    def range(self, text: str, start: int, end: int | None, thread: int, kind: int = 59) -> None:
        """Add an NVTX range: its text inline in the old release, by id in the others."""
        shared = self.version != "2023.2"
        said = {"textId": self.text(text)} if shared else {"text": text}
        place = {"start": start, "end": end, "globalTid": thread, "eventType": kind, "domainId": 0}
        self.insert("NVTX_EVENTS", **said, **place)

    def close(self) -> None:
        """Write it."""
        self.connection.commit()
        self.connection.close()


def global_tid(event: Event) -> int:
    """The number of a host thread, with its process, as nsys writes it."""
    return (1 << 56) | (int(event["pid"]) << 24) | int(event["tid"])


def export(
    name: str, path: Path, version: Version = "2025.3", graphs: Literal["node", "graph"] = "node"
) -> Path:
    """Make an export of a recorded trace."""
    made = Export(path, version)
    events = [event for event in events_of(name) if event["ph"] == "X"]
    first = min(event["ts"] for event in events)
    host = next(event for event in events if event["cat"] in ("cuda_runtime", "cuda_driver"))
    process = global_tid(host) >> 24 << 24
    for gpu in (0, 1):
        made.insert("TARGET_INFO_GPU", vmId=0, id=gpu, name="NVIDIA H200", busLocation="0000:18:00.0")
        if version != "2023.2":
            device = {"gpuId": gpu, "cudaId": gpu, "pid": host["pid"], "numMultiprocessors": 132}
            made.insert("TARGET_INFO_CUDA_DEVICE", **device)
    replays = {
        event["args"]["correlation"] for event in events if event["name"].startswith("cudaGraphLaunch")
    }
    for number, event in enumerate(events):
        start = round((event["ts"] - first) * 1000)
        times = {"start": start, "end": start + round(event["dur"] * 1000)}
        _add(made, event, times, process, number, replays if graphs == "node" else set())
    if graphs == "graph":
        _add_graphs(made, replays)
    made.close()
    return path


def _add(
    made: Export, event: Event, times: dict[str, int], process: int, number: int, replays: set[int]
) -> None:
    args = event.get("args", {})
    launch = {**times, "globalPid": process, "deviceId": args.get("device"), "streamId": args.get("stream")}
    launch["correlationId"] = args.get("correlation")
    match event["cat"]:
        case "kernel":
            node = number if launch["correlationId"] in replays else None
            made.kernel(event["name"], graphNodeId=node, **launch)
        case "gpu_memcpy":
            kind = 1 if "HtoD" in event["name"] else 2 if "DtoH" in event["name"] else 8
            made.insert(
                "CUPTI_ACTIVITY_KIND_MEMCPY", contextId=1, bytes=args["bytes"], copyKind=kind, **launch
            )
        case "gpu_memset":
            made.insert("CUPTI_ACTIVITY_KIND_MEMSET", contextId=1, bytes=args["bytes"], value=0, **launch)
        case "cuda_runtime" | "cuda_driver" as category:
            call = {"globalTid": global_tid(event), "correlationId": args["correlation"], "returnValue": 0}
            kind = int(category == "cuda_driver")
            named = {"eventClass": kind, "nameId": made.text(event["name"])}
            made.insert("CUPTI_ACTIVITY_KIND_RUNTIME", **times, **call, **named)
        case "cpu_op":
            sizes = f", sizes = {json.dumps(args['Input Dims'])}" if "Input Dims" in args else ""
            # Operations outside a gradient's graph have no sequence number.
            sequence = ", seq = 3" if number % 2 else ""
            text = f"{event['name']}{sequence}, op_id = {number}{sizes}"
            made.range(text, times["start"], times["end"], global_tid(event))
        case "user_annotation":
            made.range(f"{event['name']}, op_id = {number}", times["start"], times["end"], global_tid(event))


def _add_graphs(made: Export, replays: Iterable[int]) -> None:
    """Put one row for a replay in the place of its kernels."""
    for correlation in replays:
        made.connection.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end, deviceId, contextId, streamId,"
            " correlationId, globalPid, graphId, graphExecId)"
            " SELECT min(start), max(end), deviceId, contextId, streamId, correlationId, globalPid, 7, 8"
            " FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId = ?",
            (correlation,),
        )
        made.connection.execute(
            "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE correlationId = ?", (correlation,)
        )
