"""An SQLite file of unknown origin, opened so that nothing in it can run.

Only real tables and stored columns are read: a view or a generated column is a program of whoever wrote the
file. Nothing is written, no other file is attached, and a query ends after `MOST_SECONDS`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traces.readers import UnreadableTrace

MOST_SECONDS = 900.0
MOST_TEXT = 1 << 20  # bytes of one value; a kernel's name has a few thousand
BATCH = 50_000  # rows
_STEPS = 100_000  # of SQLite's machine between two looks at the clock
MISSING = int(np.iinfo(np.int64).min)  # stands for what is no integer
_STORED = 0  # table_xinfo's `hidden` of a plain column


@dataclass(frozen=True, slots=True)
class Database:
    """Tables by name, each with its columns."""

    path: Path
    connection: sqlite3.Connection
    tables: dict[str, tuple[str, ...]]

    def has(self, table: str, *columns: str) -> bool:
        """Whether a table is there, with these columns."""
        return table in self.tables and set(columns) <= set(self.tables[table])

    def rows(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        """The rows of a query, in batches."""
        cursor = self.connection.execute(sql)
        while batch := cursor.fetchmany(BATCH):
            yield batch

    def select(self, table: str, columns: Iterable[str], rest: str = "") -> Iterator[list[tuple[Any, ...]]]:
        """Columns of a table in batches; NULL for those that it does not have."""
        there = self.tables[table]
        wanted = ", ".join(f'"{name}"' if name in there else "NULL" for name in columns)
        yield from self.rows(f'SELECT {wanted} FROM "{table}" {rest}')


def integers(values: Iterable[Any], count: int) -> NDArray[np.int64]:
    """A column's integers, exactly; MISSING for anything else, as SQLite's columns hold what they like."""
    return np.fromiter((value if type(value) is int else MISSING for value in values), np.int64, count)


@contextmanager
def opened(path: Path, wanted: Iterable[str]) -> Iterator[Database]:
    """Open a file, and look at the wanted tables. Raises UnreadableTrace, also while it is in use."""
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise UnreadableTrace(f"{path}: cannot be opened as an SQLite database ({_told(error)})") from None
    began = time.monotonic()
    try:
        _harden(connection, began)
        yield Database(path, connection, _tables(path, connection, wanted))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # SQLite may quote what is no UTF-8
        late = time.monotonic() - began > MOST_SECONDS
        why = f"takes more than {MOST_SECONDS:.0f} s to read" if late else f"cannot be read ({_told(error)})"
        raise UnreadableTrace(f"{path}: the SQLite database {why}; export it again") from None
    finally:
        connection.close()


def _told(error: Exception) -> str:
    """What SQLite says, on one line: it quotes the file's own texts."""
    return " ".join(ascii(str(error))[1:-1].replace("\\n", " ").split())[:200]


def _harden(connection: sqlite3.Connection, began: float) -> None:
    connection.text_factory = lambda value: value.decode("utf-8", "replace")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_TEXT)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_progress_handler(lambda: time.monotonic() - began > MOST_SECONDS, _STEPS)
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA query_only = ON")
    connection.execute("PRAGMA temp_store = MEMORY")


def _tables(path: Path, connection: sqlite3.Connection, wanted: Iterable[str]) -> dict[str, tuple[str, ...]]:
    found = {}
    for name in wanted:
        row = connection.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        if row is None:
            continue
        if row[0] != "table" or str(row[1]).lstrip().upper().startswith("CREATE VIRTUAL"):
            raise UnreadableTrace(
                f"{path}: {name} is no plain table, and nothing else is read: export it again"
            )
        about = connection.execute(f'PRAGMA table_xinfo("{name}")').fetchall()
        found[name] = tuple(str(column[1]) for column in about if column[6] == _STORED)
    return found
