"""The bytes of a trace, plain or gzipped, in pieces: never much at once, nor more than is allowed."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

from traces.readers import UnreadableTrace

PIECE = 1 << 18  # bytes read at once; what is parsed of them fits into a processor's cache
GZIP = b"\x1f\x8b"
MOST_BYTES = 1 << 36  # of a trace, unpacked: 64 GiB
# Traces are packed 8 to 40 times; deflate reaches 1030 times, on nothing but repetition.
MOST_RATIO = 400
FREE_OF_RATIO = 1 << 26  # unpacked bytes up to which the ratio does not matter


def is_packed(path: Path) -> bool:
    """Whether a file is gzipped. Raises OSError."""
    with path.open("rb") as file:
        return file.read(2) == GZIP


def head(path: Path, size: int = 1 << 16) -> bytes:
    """The first bytes of a file, unpacked if it is gzipped. Raises OSError and UnreadableTrace."""
    if not is_packed(path):
        with path.open("rb") as plain:
            return plain.read(size)
    with path.open("rb") as packed, gzip.GzipFile(fileobj=packed) as file:
        return _next(path, file, 0, size)


def pieces(path: Path, start: int = 0, stop: int | None = None, most: int = MOST_BYTES) -> Iterator[bytes]:
    """The unpacked bytes of a file, or a range of a plain one; the next piece is read while one is used.

    Raises UnreadableTrace for a gzip file that is cut short or spoilt, and for one that unpacks to more than
    `most` bytes or out of all proportion.
    """
    read = _unpacked(path, most) if is_packed(path) else _plain(path, start, stop, most)
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, read, b"")
        while piece := coming.result():
            coming = pool.submit(next, read, b"")
            yield piece


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, gzipped if its name ends in .gz, without its name and time. Raises OSError."""
    with path.open("wb") as file:
        if not path.name.endswith(".gz"):
            yield file
            return
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
            yield cast(IO[bytes], packed)


def _plain(path: Path, start: int, stop: int | None, most: int) -> Iterator[bytes]:
    size = path.stat().st_size
    if size > most:
        raise UnreadableTrace(f"{path}: holds {size} bytes, more than the {most} that are allowed")
    left = size - start if stop is None else stop - start
    with path.open("rb") as file:
        file.seek(start)
        while left > 0 and (piece := file.read(min(PIECE, left))):
            left -= len(piece)
            yield piece


def _unpacked(path: Path, most: int) -> Iterator[bytes]:
    done = 0
    with path.open("rb") as packed, gzip.GzipFile(fileobj=packed) as file:
        while piece := _next(path, file, done):
            done += len(piece)
            if done > most:
                raise UnreadableTrace(f"{path}: unpacks to more than the {most} bytes that are allowed")
            if done > FREE_OF_RATIO and done > MOST_RATIO * packed.tell():
                raise UnreadableTrace(
                    f"{path}: unpacks to more than {MOST_RATIO} times its size, as a zip bomb does; "
                    "unpack it yourself if it is none"
                )
            yield piece


def _next(path: Path, file: gzip.GzipFile, done: int, size: int = PIECE) -> bytes:
    try:
        return file.read(size)
    except EOFError:
        raise UnreadableTrace(f"{path}: the gzip file is cut short after {done} unpacked bytes") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        what = f"{path}: the gzip file is spoilt after {done} unpacked bytes: {error}"
        raise UnreadableTrace(what) from None
