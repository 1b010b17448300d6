"""The events of a Kineto trace, batch by batch, from bytes that are never held whole.

A trace is one JSON object; its member `traceEvents` is a list of nearly all its bytes. (A bare list of
events, Chrome's "JSON array format", is read as well.) Kineto writes every event on lines of its own, so a
piece of the file is cut at the last seam between two events and parsed by orjson at once. A cut at the wrong
place, as inside a text, cannot go unnoticed: what lies before it would be no list of JSON values. Such a
piece, and one of another layout, is read value by value with Python's own decoder, which is slower and takes
what other writers put out: NaN and Infinity, control characters, bytes that are no UTF-8.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from traces.readers.packed import PIECE

MOST_VALUE = 1 << 26  # bytes of one event, or of one value beside the events
# Between two events as Kineto writes them, as json.dump does, as other writers without blanks do.
SEAMS = (b"\n  },\n  {", b'}, {"ph"', b'}, {"name"', b'}, {"cat"', b'},{"ph"', b'},{"name"', b'},{"cat"')
EVENTS = "traceEvents"
BOM = b"\xef\xbb\xbf"

Batch = list[Any]

_DECODER = json.JSONDecoder(strict=False)
_BLANK = re.compile(r"[ \t\r\n]*")


class Broken(Exception):
    """Bytes that are no trace: where, and what is wrong."""

    def __init__(self, at: int, what: str) -> None:
        self.at, self.what = at, what
        super().__init__(at, what)


@dataclass(slots=True)
class Events:
    """Reads a trace once, from front to end: `batches` gives its events, `header` what stands beside them."""

    pieces: Iterator[bytes]
    header: dict[str, Any] = field(default_factory=dict)
    found: bool = False  # whether there was a list of events
    recoded: int = 0  # pieces with bytes that are no UTF-8
    buffer: bytes = b""
    place: int = 0  # of the buffer's first byte
    ended: bool = False  # whether the buffer holds all that is left

    def batches(self) -> Iterator[Batch]:
        """The events of a whole file. Raises Broken."""
        while len(self.buffer) < len(BOM) and self._more():
            pass
        self._drop(len(BOM) if self.buffer.startswith(BOM) else 0)
        first = self._peek()
        if first == "[":
            self.found = True
            yield from self._list()
        elif first == "{":
            yield from self._object()
        else:
            raise Broken(self.place, "no JSON object" if first else "nothing")
        if self._peek():
            raise Broken(self.place, "something behind the end of the trace")

    def _object(self) -> Iterator[Batch]:
        """The members of the trace, from its opening brace on."""
        self._expect("{")
        closed = self._peek() == "}"
        while not closed:
            if (found := self._peek()) != '"':
                raise Broken(self.place, "no name of a member" if found else "cut short")
            name = str(self._value())
            self._expect(":")
            if name != EVENTS:
                self.header[name] = self._value()
            elif self._peek() == "[":
                self.found = True
                yield from self._list()
            else:
                raise Broken(self.place, "traceEvents that are not a list")
            closed = self._peek() == "}"
            if not closed:
                self._expect(",")
        self._expect("}")

    def _list(self) -> Iterator[Batch]:
        """The elements of a list, from its opening bracket on."""
        self._expect("[")
        closed = self._peek() == "]"
        if closed:
            self._expect("]")
        while not closed:
            while len(self.buffer) < PIECE and self._more():
                pass
            if events := self._fast():
                yield events
                continue
            events, closed = self._slow()
            yield events

    def _fast(self) -> Batch | None:
        """All events up to the last seam in the buffer, if that is one."""
        if (halves := self._cut()) is None:
            return None
        try:
            events: Batch = orjson.loads(b"[" + halves[0] + b"]")
        except orjson.JSONDecodeError:
            return None
        self._drop(len(halves[0]) + 1)
        return events

    def _cut(self) -> tuple[bytes, bytes] | None:
        for seam in SEAMS:
            if (at := self.buffer.rfind(seam)) >= 0:
                at = self.buffer.index(b"}", at) + 1
                return self.buffer[:at], self.buffer[at:]
        return None

    def _slow(self) -> tuple[Batch, bool]:
        """At least one event, as many as the buffer holds whole, and whether the list ends behind them."""
        while True:
            text, events, used, closed = self._text(), [], 0, False
            problem: tuple[int, str] | None = None
            while not closed:
                try:
                    value, end = _DECODER.raw_decode(text, _skip(text, used))
                except (ValueError, RecursionError) as error:
                    problem = _where(error, used)
                    break
                if (end := _skip(text, end)) == len(text):
                    problem = (end, "cut short")
                    break
                if text[end] not in ",]":
                    raise Broken(self._byte(text, end), f"{text[end]!r} between two events")
                events.append(value)
                used, closed = end + 1, text[end] == "]"
            if events:
                self._drop(len(_bytes(text[:used])))
                return events, closed
            self._wait(text, problem or (0, "nothing"))

    def _value(self) -> Any:
        """The JSON value at the buffer's front."""
        while True:
            self._peek()
            text = self._text()
            try:
                value, end = _DECODER.raw_decode(text, 0)
            except (ValueError, RecursionError) as error:
                self._wait(text, _where(error, 0))
                continue
            if end < len(text) or not self._more():  # a number might go on
                self._drop(len(_bytes(text[:end])))
                return value

    def _wait(self, text: str, problem: tuple[int, str]) -> None:
        """Read on, as far as a value might still become whole. Raises Broken if it cannot."""
        if len(self.buffer) > MOST_VALUE:
            what = f"no JSON value of at most {MOST_VALUE >> 20} MiB ({problem[1]})"
            raise Broken(self._byte(text, problem[0]), what)
        before = len(self.buffer)
        while len(self.buffer) < 2 * before and self._more():
            pass
        if len(self.buffer) == before:
            what = "cut short" if problem[0] >= len(text.rstrip()) else problem[1]
            raise Broken(self._byte(text, problem[0]), what)

    def _text(self) -> str:
        try:
            return self.buffer.decode()
        except UnicodeDecodeError as error:
            if self.ended or error.start < len(self.buffer) - 4:  # else a piece's end cuts a character
                self.recoded += 1
            return self.buffer.decode(errors="surrogateescape")

    def _byte(self, text: str, at: int) -> int:
        return self.place + len(_bytes(text[:at]))

    def _peek(self) -> str:
        """The next character that is not blank; empty at the end."""
        while True:
            self._drop(len(self.buffer) - len(self.buffer.lstrip(b" \t\r\n")))
            if self.buffer or not self._more():
                return self.buffer[:1].decode("latin-1")

    def _expect(self, character: str) -> None:
        if (found := self._peek()) != character:
            raise Broken(self.place, f"{found!r} for {character!r}" if found else "cut short")
        self._drop(1)

    def _drop(self, count: int) -> None:
        if count:
            self.buffer = self.buffer[count:]
            self.place += count

    def _more(self) -> bool:
        if piece := next(self.pieces, b""):
            self.buffer += piece
        self.ended = not piece
        return bool(piece)


def _skip(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return found.end() if found else at


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogateescape")


def _where(error: ValueError | RecursionError, used: int) -> tuple[int, str]:
    """Where in the text a decoder stopped, and why."""
    if isinstance(error, json.JSONDecodeError):
        what = error.msg.removesuffix(" starting at")
        return error.pos, what[:1].lower() + what[1:]
    return used, "values nested too deeply" if isinstance(error, RecursionError) else "a number too long"
