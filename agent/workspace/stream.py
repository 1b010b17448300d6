"""What a tool prints, line by line as it comes, and the transcript that is kept of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from agent.models.keys import Key
from agent.workspace.leaks import scrub
from atrex.errors import UsageError

LONGEST_LINE = 4 << 20  # bytes; an event that holds a whole kernel file is far below
_TAIL = 4096


class Lines:
    """Whole lines out of pieces of a stream; one that is too long is given up, and its start returned."""

    def __init__(self, longest: int = LONGEST_LINE) -> None:
        self._longest = longest
        self._pending = bytearray()
        self._skipping = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that end in `data`, without their ends; empty ones are left out."""
        *ends, rest = data.split(b"\n")
        for part in ends:
            yield from self._end(part)
        self._grow(rest)
        if self._skipping and self._pending:
            yield self._take()

    def rest(self) -> Iterator[bytes]:
        """The last line of a stream that ended without ending it."""
        yield from self._end(b"")

    def _grow(self, part: bytes) -> None:
        if self._skipping:
            return
        self._pending += part
        if len(self._pending) > self._longest:
            self._skipping = True
            del self._pending[_TAIL:]

    def _end(self, part: bytes) -> Iterator[bytes]:
        self._grow(part)
        line, self._skipping = self._take(), False
        if line.strip():
            yield line

    def _take(self) -> bytes:
        line = bytes(self._pending)
        self._pending.clear()
        return line


def event(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None for anything else."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


class Transcript:
    """The tool's lines in a file, without keys, up to a size; a context manager.

    Raises UsageError if the file cannot be made. What cannot be written later (`trouble` says why) is lost:
    a full disk is no reason to lose the kernel too.
    """

    def __init__(self, path: Path, keys: Sequence[Key], limit: int) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
        self._keys = keys
        self._room = limit
        self.trouble = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def scrub(self, text: str) -> str:
        """The text without any key."""
        return scrub(text, self._keys)

    def add(self, line: bytes) -> None:
        """Append a line; past the limit one that says so, and then nothing."""
        if self._room <= 0:
            return
        data = self.scrub(line.decode(errors="replace")).encode() + b"\n"
        self._room -= len(data)
        if self._room <= 0:
            data = b'{"type":"atrex","message":"the transcript is longer than is kept"}\n'
        try:
            self._file.write(data)
        except OSError as error:
            self._room, self.trouble = 0, f"the transcript is cut: {error.strerror}"

    def note(self, kind: str, text: str) -> None:
        """Append what the tool did not say itself: its standard error, or how the session ended."""
        self.add(json.dumps({"type": "atrex", "kind": kind, "text": text}).encode())


class Tail:
    """The last words of a stream."""

    def __init__(self) -> None:
        self._data = b""

    def feed(self, data: bytes) -> None:
        """Keep the end of it."""
        self._data = (self._data + data)[-_TAIL:]

    @property
    def text(self) -> str:
        """As text."""
        return self._data.decode(errors="replace").strip()
