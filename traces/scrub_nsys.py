"""Scrubbing an export of Nsight Systems: a new database, from the tables and columns that ingestion reads."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traces.readers.database import Database, opened
from traces.readers.nsys import (
    ACTIVITIES,
    COPIES,
    CUDA_DEVICES,
    GPUS,
    GRAPHS,
    KERNELS,
    LAUNCH,
    TABLES,
    best_name,
)
from traces.readers.nsys_calls import CALLS, PROCESS, RANGE_TYPES, RANGES, STRINGS, strings
from traces.readers.ranges import parse
from traces.scrub_names import Names

META = "META_DATA_EXPORT"
_VERSION = re.compile(r"\d{1,4}(?:\.\d{1,4}){1,3}")
_PID = (1 << 24) - 1


@dataclass(slots=True)
class _New:
    """The database that is written."""

    base: sqlite3.Connection
    names: Names
    texts: dict[str, int] = field(default_factory=dict)

    def table(self, name: str, columns: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Make a table of integers, or of what the rows hold."""
        columns = list(columns)
        named = ", ".join(f'"{column}"' for column in columns)
        self.base.execute(f"CREATE TABLE {name} ({named})")
        self.base.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", rows)

    def text(self, text: str) -> int:
        """The id of a text."""
        return self.texts.setdefault(text, len(self.texts) + 1)

    def number(self, kind: str, value: Any) -> int | None:
        """A new number for an id."""
        return self.names.number(kind, value) if type(value) is int else None

    def owner(self, serialised: Any) -> int | None:
        """A process, and a thread if one is in it, under new numbers."""
        if type(serialised) is not int:
            return None
        process = self.names.number("process", (serialised >> PROCESS) + 1) & _PID
        thread = serialised & _PID
        return process << PROCESS | (self.names.number("thread", serialised) & _PID if thread else 0)


def scrub_nsys(source: Path, target: Path, names: Names) -> None:
    """Build a database of what ingestion needs. Raises UnreadableTrace."""
    with opened(source, [*TABLES, META]) as base, closing(sqlite3.connect(target)) as connection:
        new = _New(connection, names)
        _count_the_rest(base, names)
        for table in ACTIVITIES:
            if table in base.tables:
                _activities(base, new, table)
        _calls(base, new)
        _ranges(base, new)
        _devices(base, new)
        new.table(STRINGS, ("id", "value"), ((number, text) for text, number in new.texts.items()))
        connection.commit()


def _count_the_rest(base: Database, names: Names) -> None:
    """Tables and columns that are not taken along."""
    everything = [
        row[0] for batch in base.rows("SELECT name FROM sqlite_master WHERE type = 'table'") for row in batch
    ]
    names.drop("tables", len(set(everything) - set(TABLES) - {META}))
    kept = {*LAUNCH, "copyKind", "graphId", "eventType", "globalTid", "textId", "id", "name", "value"}
    columns = [column for there in base.tables.values() for column in there]
    names.drop("columns", sum(column not in kept for column in columns))


def _activities(base: Database, new: _New, table: str) -> None:
    """Kernels, copies, fills, graphs."""
    name = {KERNELS: best_name(base), COPIES: "copyKind", GRAPHS: "graphId"}.get(table, "")
    columns = [column for column in (*LAUNCH, name) if column in base.tables[table]]
    texts = dict(strings(base, f'SELECT "{name}" FROM {KERNELS}')) if table == KERNELS else {}

    def kernel(value: Any) -> int | None:
        return new.text(new.names.kernel(texts[value])) if value in texts else None

    converted: dict[str, Callable[[Any], int | None]] = {
        "globalPid": new.owner,
        "correlationId": lambda value: new.number("correlation", value),
        "graphNodeId": lambda value: new.number("graph node", value),
    }
    if table == KERNELS:
        converted[name] = kernel
    how = [converted.get(column, _whole) for column in columns]
    rows = (
        tuple(convert(value) for convert, value in zip(how, row, strict=True))
        for batch in base.select(table, columns)
        for row in batch
    )
    new.table(table, columns, rows)


def _calls(base: Database, new: _New) -> None:
    """The calls that launched something, without their names."""
    columns = ("start", "globalTid", "correlationId")
    if not base.has(CALLS, *columns):
        return
    launched = new.names.ids.get("correlation", {})

    def rows() -> Iterator[tuple[Any, ...]]:
        for batch in base.select(CALLS, columns):
            for start, thread, correlation in batch:
                if correlation in launched or (type(correlation) is int and correlation <= 0):
                    yield _whole(start), new.owner(thread), new.number("correlation", correlation)
                else:
                    new.names.drop("calls that launched nothing")

    new.table(CALLS, columns, rows())


def _ranges(base: Database, new: _New) -> None:
    """NVTX ranges; every text by its id."""
    if not base.has(RANGES, "start", "end", "globalTid"):
        return
    typed = "eventType" in base.tables[RANGES]
    shared = "textId" in base.tables[RANGES]
    texts = dict(strings(base, f"SELECT textId FROM {RANGES}")) if shared else {}
    columns = ("start", "end", "globalTid", "textId", *(["eventType"] if typed else []))
    rest = f"WHERE eventType IN {RANGE_TYPES}" if typed else ""

    def rows() -> Iterator[tuple[Any, ...]]:
        for batch in base.select(RANGES, ("start", "end", "globalTid", "textId", "text", "eventType"), rest):
            for start, end, thread, number, text, kind in batch:
                said = text if isinstance(text, str) else texts.get(number)
                if said is not None:
                    place = (_whole(start), _whole(end), new.owner(thread))
                    yield (*place, new.text(range_text(said, new.names)), *([kind] if typed else []))

    new.table(RANGES, columns, rows())


def range_text(text: str, names: Names) -> str:
    """The text of a range: an operation with its shapes, or an annotation, and nothing else."""
    found = parse(text)
    if not found.operation:
        return names.annotation(found.name)
    sizes = f", sizes = {found.shapes}" if found.shapes else ""
    return f"{names.operator(found.name)}, seq = 0, op_id = 1{sizes}"


def _devices(base: Database, new: _New) -> None:
    """What the GPUs are, how each process counts them, and the version of the schema."""
    if base.has(GPUS, "id", "name"):
        rows = [row for batch in base.select(GPUS, ("id", "name")) for row in batch]
        found = [
            (_whole(gpu), new.names.hardware(name)) for gpu, name in rows if isinstance(name, str) and name
        ]
        new.table(GPUS, ("id", "name"), found)
    if base.has(CUDA_DEVICES, "gpuId", "cudaId", "pid"):
        rows = [row for batch in base.select(CUDA_DEVICES, ("gpuId", "cudaId", "pid")) for row in batch]
        processes = new.names.ids.get("process", {})
        numbers = [
            (_whole(gpu), _whole(cuda), number)
            for gpu, cuda, pid in rows
            for process, number in processes.items()
            if (process - 1) & _PID == pid
        ]
        new.table(CUDA_DEVICES, ("gpuId", "cudaId", "pid"), numbers)
    if base.has(META, "name", "value"):
        rows = [row for batch in base.select(META, ("name", "value")) for row in batch]
        new.table(META, ("name", "value"), [row for row in rows if _is_version(*row)])


def _is_version(name: Any, value: Any) -> bool:
    return name == "EXPORT_SCHEMA_VERSION" and isinstance(value, str) and bool(_VERSION.fullmatch(value))


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None
