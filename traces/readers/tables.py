"""CSV files of unknown origin, read in pieces: what the readers of CSV formats share."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
from numpy.typing import NDArray
from pandas.errors import ParserError

from traces.readers import UnreadableTrace
from traces.readers.packed import pieces as unpacked

ROWS = 50_000  # of a piece
MOST_ROWS = 50_000_000
MOST_COLUMNS = 256
MOST_LINE = 1 << 20  # bytes; the longest kernel names have a few thousand
MOST_HEADER = 1 << 16

Floats = NDArray[np.float64]


@dataclass(slots=True)
class _Lines(io.RawIOBase):
    """A file whose lines have a bounded length: a reader of CSV keeps the line it is in."""

    path: Path
    coming: Iterator[bytes]
    data: bytes = b""
    length: int = 0  # of the line so far

    def read(self, size: int = -1) -> bytes:
        """The next bytes. Raises UnreadableTrace within a line that is too long."""
        if not self.data:
            self.data = next(self.coming, b"")
        size = len(self.data) if size < 0 else min(size, MOST_LINE)
        data, self.data = self.data[:size], self.data[size:]
        first, last = data.find(b"\n"), data.rfind(b"\n")
        if self.length + (len(data) if first < 0 else first) > MOST_LINE:
            raise UnreadableTrace(
                f"{self.path}: a line is longer than {MOST_LINE >> 20} MiB: no CSV of launches"
            )
        self.length = self.length + len(data) if first < 0 else len(data) - last - 1
        return data


def header_of(head: bytes) -> tuple[str, ...]:
    """The names of the columns in a file's first bytes; empty if there is no line of them."""
    line = head.removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0][:MOST_HEADER]
    try:
        names = next(csv.reader([line.decode("utf-8", "replace").rstrip("\r")]), [])
    except csv.Error:
        return ()
    return tuple(name.strip() for name in names)


def pieces(path: Path) -> Iterator[pandas.DataFrame]:
    """The rows of a CSV, all texts, with lower-case column names; the index is the line's number.

    Plain or gzipped. Raises UnreadableTrace, one line.
    """
    try:
        _check_first_line(path)
        yield from _parsed(path)
    except ParserError as error:
        reason = str(error).rpartition("C error: ")[2].strip()
        hint = "give every line as many fields as the first, and quote texts with commas"
        raise UnreadableTrace(f"{path}: no well-formed CSV ({reason}): {hint}") from None
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror})") from None


def _check_first_line(path: Path) -> None:
    """Whether a parser can be let at it: one makes a list for every column."""
    head = next(unpacked(path), b"")
    if len(head.partition(b"\n")[0]) > MOST_HEADER:
        raise UnreadableTrace(
            f"{path}: the first line has more than {MOST_HEADER >> 10} KiB: no names of columns"
        )
    names = header_of(head)
    if not any(names):
        raise UnreadableTrace(f"{path}: has no first line with names of columns")
    if len(names) > MOST_COLUMNS:
        raise UnreadableTrace(f"{path}: has {len(names)} columns; at most {MOST_COLUMNS} are read")


def _parsed(path: Path) -> Iterator[pandas.DataFrame]:
    # The first line is among the rows: it says to the parser how many fields a line has.
    chunks = pandas.read_csv(
        _Lines(path, unpacked(path)),
        header=None,
        index_col=False,
        chunksize=ROWS,
        dtype=object,
        na_filter=False,
        skip_blank_lines=False,
        encoding_errors="replace",
    )
    names: list[str] = []
    for chunk in chunks:
        rows = chunk
        if not names:
            names = _names(path, chunk.iloc[0])
            rows = chunk.iloc[1:]
        rows = rows.set_axis(names, axis="columns")
        rows.index += 1
        if len(rows) and rows.index[-1] > MOST_ROWS:
            raise UnreadableTrace(f"{path}: has more than {MOST_ROWS} lines: split the recording")
        yield rows[(rows != "").any(axis=1)]


def _names(path: Path, row: pandas.Series[str]) -> list[str]:
    """The names of the columns, from the first line."""
    names = [str(name).removeprefix("\ufeff").strip().lower() for name in row]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UnreadableTrace(
            f"{path}: column {shown(twice[0])} appears twice: give every column its own name"
        )
    return names


def shown(text: object) -> str:
    """A text of a file as an error may show it: short, on one line."""
    return repr(str(text)[:40])


def numbers(column: pandas.Series[str]) -> Floats:
    """A column as numbers; NaN for what is none."""
    return pandas.to_numeric(column, errors="coerce").to_numpy(np.float64, copy=True)


def integers(column: pandas.Series[str], missing: int) -> NDArray[np.int64]:
    """A column as integers, exactly: nanoseconds of a clock have more digits than a float."""
    texts = column.str.strip()
    good = texts.str.fullmatch(r"-?\d{1,18}").to_numpy(bool)
    found = np.full(len(column), missing, np.int64)
    found[good] = texts[good].to_numpy(object).astype(np.int64)
    return found
