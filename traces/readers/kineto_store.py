"""The tables of a Kineto trace on disk, and the joins between them: DuckDB, within a bounded memory.

A file may be read in parts, by several processes; each part has a database of its own, whose numbers of texts
and threads are made those of the whole here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pandas
from duckdb import DuckDBPyConnection
from numpy.typing import NDArray

from traces.readers.kineto_columns import NONE, OPERATION, TYPES, Columns, Thread

MEMORY = "384MB"
CHUNK = 64  # vectors of 2048 rows that are fetched at once

_SQL_TYPES: dict[type, str] = {
    np.int8: "TINYINT",
    np.int32: "INTEGER",
    np.int64: "BIGINT",
    np.float64: "DOUBLE",
    np.bool_: "BOOLEAN",
}

# The call that launched an activity, by correlation id: where several calls share it, the latest before the
# activity, or the first, where host and device clocks disagree. An activity whose call was not recorded is
# placed at the operation with its external id, if only one has it.
_LAUNCHES = f"""
WITH launched AS (
    SELECT device.*, call.thread AS caller, call.start AS called, call.graph
    FROM device ASOF LEFT JOIN call
    ON device.job = call.job AND device.correlation = call.correlation AND device.start >= call.start
), skewed AS (
    SELECT job, correlation, arg_min(thread, start) AS caller, min(start) AS called,
        arg_min(graph, start) AS graph
    FROM call GROUP BY ALL
), operation AS (
    SELECT job, external, min(thread) AS caller, min(start) AS called
    FROM span WHERE kind = {OPERATION} AND external > 0
    AND external IN (SELECT external FROM launched WHERE called IS NULL)
    GROUP BY ALL HAVING count(*) = 1
)
SELECT launched.kind, launched.name, launched.job, launched.device, launched.stream, launched.start,
    launched.duration,
    coalesce(launched.caller, skewed.caller, operation.caller, {NONE})::INTEGER AS caller,
    coalesce(launched.called, skewed.called, operation.called, 0)::DOUBLE AS called,
    coalesce(launched.graph, skewed.graph, false) OR launched.node AS graph
FROM launched
LEFT JOIN skewed ON launched.called IS NULL
    AND launched.job = skewed.job AND launched.correlation = skewed.correlation
LEFT JOIN operation ON launched.called IS NULL AND skewed.called IS NULL
    AND launched.job = operation.job AND launched.external = operation.external
"""
_SHARED = """
SELECT count(*) FROM (
    SELECT job, correlation FROM call WHERE (job, correlation) IN (SELECT (job, correlation) FROM device)
    GROUP BY ALL HAVING count(*) > 1
)
"""
_SPANS = """
SELECT kind, thread, start, stop, name, shapes, dtypes, scalars FROM span
WHERE thread IN (SELECT thread FROM asked)
ORDER BY kind, thread, start, stop DESC, place
"""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file, read: where its tables are, and what their numbers stand for."""

    database: Path
    texts: tuple[str, ...]
    threads: tuple[tuple[int | str, int | str], ...]
    known: int
    unusable: dict[str, int]


class Writer:
    """Writes the tables of one part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base = _connected(str(path), path.with_suffix(".spill"))
        self._base.begin()  # one transaction: a half-written part is of no use
        for table, types in TYPES.items():
            columns = ", ".join(f"{name} {_SQL_TYPES[kind]}" for name, kind in types.items())
            self._base.execute(f"CREATE TABLE {table} ({columns}, place BIGINT)")
        self._place = 0

    def write(self, tables: dict[str, Columns]) -> None:
        """Add rows behind those that are there."""
        for table, columns in tables.items():
            rows = pandas.DataFrame(columns, copy=False)
            rows["place"] = np.arange(self._place, self._place + len(rows))
            self._place += len(rows)
            self._base.register("rows", rows)
            self._base.execute(f"INSERT INTO {table} SELECT * FROM rows")
            self._base.unregister("rows")

    def close(self) -> None:
        """Leave the file to others."""
        self._base.commit()
        self._base.close()


class Tables:
    """The tables of all parts of a file, as one."""

    def __init__(self, parts: tuple[Part, ...], directory: Path) -> None:
        self._base = _connected(":memory:", directory / "whole.spill")
        self.texts = [text for part in parts for text in part.texts]
        threads = list(dict.fromkeys(Thread(*who) for part in parts for who in part.threads))
        self.labels = sorted({who.label for who in threads})
        self._number(parts, threads)
        for number, part in enumerate(parts):
            self._base.execute(f"ATTACH '{_quoted(part.database)}' AS part{number} (READ_ONLY)")
        graphs = [code for code, text in enumerate(self.texts) if "GraphLaunch" in text]
        self._base.register("graphs", pandas.DataFrame({"name": np.array(graphs, np.int32)}))
        self._view("device", parts, ("name",))
        self._view("span", parts, ("name", "shapes", "dtypes", "scalars"))
        self._view("every_call", parts, ("name",), "call")
        self._base.execute(
            "CREATE TABLE call AS SELECT job, correlation, start, min(thread) AS thread, "
            "bool_or(name IN (FROM graphs)) AS graph FROM every_call WHERE correlation > 0 GROUP BY ALL"
        )

    def launches(self) -> Columns:
        """Every activity of a device, with the thread (or NONE) and the time of the call that launched it."""
        found = self._base.execute(_LAUNCHES).fetchnumpy()
        return {name: np.asarray(column) for name, column in found.items()}

    def shared_correlations(self) -> int:
        """How many correlation ids of activities are those of several calls."""
        row = self._base.execute(_SHARED).fetchone()
        return int(row[0]) if row else 0

    def spans(self, threads: NDArray[np.int32]) -> Iterator[Columns]:
        """What these threads did, by kind and thread, outer spans before inner ones, in pieces."""
        self._base.register("asked", pandas.DataFrame({"thread": threads}))
        found = self._base.execute(_SPANS)
        while len(piece := found.fetch_df_chunk(CHUNK)):
            yield {name: piece[name].to_numpy() for name in piece.columns}

    def close(self) -> None:
        """Let go of the files."""
        self._base.close()

    def _number(self, parts: tuple[Part, ...], threads: list[Thread]) -> None:
        """The number of each part's threads in the whole, and the rank whose they are."""
        code = {who: number for number, who in enumerate(threads)}
        job = {label: number for number, label in enumerate(self.labels)}
        rows = [
            (number, own, code[Thread(*who)], job[Thread(*who).label])
            for number, part in enumerate(parts)
            for own, who in enumerate(part.threads)
        ]
        columns = np.array(rows, np.int32).reshape(-1, 4)
        table = pandas.DataFrame(columns, columns=["part", "own", "code", "job"])
        self._base.register("rows", table)
        self._base.execute("CREATE TABLE thread AS SELECT * FROM rows")
        self._base.unregister("rows")

    def _view(self, view: str, parts: tuple[Part, ...], texts: tuple[str, ...], table: str = "") -> None:
        selects, base = [], 0
        for number, part in enumerate(parts):
            # 0 is no text, in every part.
            moved = [
                f"CASE WHEN rows.{name} = 0 THEN 0 ELSE rows.{name} + {base} END::INTEGER AS {name}"
                for name in texts
            ]
            moved += ["thread.code AS thread", f"(rows.place + {number << 48})::BIGINT AS place"]
            selects.append(
                f"SELECT rows.* REPLACE ({', '.join(moved)}), thread.job "
                f"FROM part{number}.{table or view} AS rows JOIN thread "
                f"ON thread.part = {number} AND thread.own = rows.thread"
            )
            base += len(part.texts)
        self._base.execute(f"CREATE VIEW {view} AS {' UNION ALL '.join(selects)}")


def _connected(database: str, spill: Path) -> DuckDBPyConnection:
    return duckdb.connect(
        database,
        config={
            "memory_limit": MEMORY,
            "threads": 2,
            "temp_directory": str(spill),
            "preserve_insertion_order": False,
        },
    )


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
