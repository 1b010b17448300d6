"""NVTX and ROCTX ranges: which of them are open around the call that launches a kernel.

A range is a text with a start and an end on one host thread. `torch.autograd.profiler.emit_nvtx` makes one of
every operation, and writes sequence number, id and sizes behind its name (torch/csrc/profiler/util.cpp,
getNvtxStr); all others are annotations: steps of a server, phases of a program.
"""

from __future__ import annotations

import heapq
import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import orjson
import pandas
from numpy.typing import NDArray

from traces.profile import UNKNOWN

DEEPEST = 256  # ranges open at once on a thread; more are no program's
FOREVER = np.iinfo(np.int64).max  # the end of a range that was still open when the recording ended

Integers = NDArray[np.int64]

# What stands behind an operation's name.
_TAIL = re.compile(
    r"(?:, seq = (?P<seq>-?\d+))?(?:, op_id = \d+)?(?:, sizes = (?P<sizes>\[[\[\]\d, -]*\]))?"
    r"(?:, input_op_ids = \[[\[\]\d, ()-]*\])?"
)
# An operation, as torch.profiler sees it (torch/_dynamo/convert_frame.py).
_COMPILED = "Torch-Compiled Region: "
_TAILS = (", seq = ", ", op_id = ", ", sizes = ")


class Range(NamedTuple):
    """What the text of a range says."""

    name: str
    shapes: str = UNKNOWN  # JSON, of an operation whose sizes were recorded
    operation: bool = False


class Context(NamedTuple):
    """The ranges around a launch call, as the launch table holds them."""

    operator: str = UNKNOWN
    stack: str = "[]"
    shapes: str = UNKNOWN
    annotations: str = "[]"


def parse(text: str) -> Range:
    """The operation or annotation that a range stands for.

    emit_nvtx gives its tail to `record_function` ranges, too: those have no sequence number, no sizes, and no
    namespace in their names.
    """
    places = [place for tail in _TAILS if (place := text.find(tail)) > 0]
    if not places or not (tail := _TAIL.fullmatch(text, min(places))):
        return Range(text)
    name = text[: min(places)]
    known = "::" in name or name.startswith(_COMPILED)
    if tail["seq"] is None and tail["sizes"] is None and not known:
        return Range(name)
    return Range(name, _shapes(tail["sizes"]), operation=True)


@lru_cache(1 << 14)
def _shapes(text: str | None) -> str:
    try:
        return orjson.dumps(orjson.loads(text)).decode() if text else UNKNOWN
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return UNKNOWN


@dataclass(slots=True)
class Ranges:
    """Ranges of a recording, collected in pieces; what they say is kept once."""

    known: dict[Range, int] = field(default_factory=dict)
    pieces: list[Integers] = field(default_factory=list)  # [4, ranges]: thread, start, end, code
    dropped: int = 0

    def code(self, text: str) -> int:
        """The number under which a text is kept."""
        return self.known.setdefault(parse(text), len(self.known))

    def add(self, piece: Integers) -> None:
        """Take in ranges ([4, ranges]); those that end before they start, or at once, hold no call."""
        self.pieces.append(piece[:, piece[2] > piece[1]])

    def around(self, threads: Integers, times: Integers) -> tuple[Integers, tuple[Context, ...]]:
        """For each call, by thread and time, the number of its context; and the contexts, the first empty."""
        found = np.zeros(len(times), np.int64)
        spoken = tuple(self.known)
        interned: dict[tuple[int, ...], int] = {(): 0}
        table = self._sorted()
        asked = pandas.Series(threads).groupby(threads).indices
        for thread, own in table.groupby("thread"):
            if thread not in asked:
                continue
            starts, ends, codes = (own[name].tolist() for name in ("start", "end", "code"))
            at, contexts = self._segments(starts, ends, codes, interned)
            calls = asked[thread]
            place = np.searchsorted(at, times[calls], side="right") - 1
            found[calls] = np.where(place >= 0, contexts[np.maximum(place, 0)], 0)
        return found, tuple(_context([spoken[code] for code in codes]) for codes in interned)

    def _sorted(self) -> pandas.DataFrame:
        """Thread by thread, outer ranges before inner ones."""
        joined = np.concatenate([np.zeros((4, 0), np.int64), *self.pieces], axis=1)
        table = pandas.DataFrame(joined.T, columns=["thread", "start", "end", "code"])
        return table.sort_values(["thread", "start", "end"], ascending=[True, True, False], kind="stable")

    def _segments(
        self, starts: list[int], ends: list[int], codes: list[int], interned: dict[tuple[int, ...], int]
    ) -> tuple[Integers, Integers]:
        """Times at which the open ranges of one thread change, and the ranges: one sweep."""
        at: list[int] = []
        contexts: list[int] = []
        opened: dict[int, int] = {}  # in the order of their starts
        closing: list[tuple[int, int]] = []

        def note(time: int) -> None:
            at.append(time)
            contexts.append(interned.setdefault(tuple(opened.values()), len(interned)))

        def close(until: int) -> None:
            while closing and closing[0][0] <= until:
                time, which = heapq.heappop(closing)
                del opened[which]
                note(time)

        for which, (start, end, code) in enumerate(zip(starts, ends, codes, strict=True)):
            close(start)
            if len(opened) >= DEEPEST:
                self.dropped += 1
                continue
            opened[which] = code
            heapq.heappush(closing, (end, which))
            note(start)
        close(int(FOREVER))
        return np.array(at, np.int64), np.array(contexts, np.int64)


def _context(ranges: list[Range]) -> Context:
    operations = [found for found in ranges if found.operation]
    notes = [found.name for found in ranges if not found.operation]
    return Context(
        operator=operations[-1].name if operations else UNKNOWN,
        stack=json.dumps([found.name for found in operations], ensure_ascii=False),
        shapes=operations[-1].shapes if operations else UNKNOWN,
        annotations=json.dumps(notes, ensure_ascii=False),
    )


def columns_of(codes: Integers, contexts: tuple[Context, ...]) -> dict[str, NDArray[np.object_]]:
    """Columns of the launch table, from the number of each launch's context."""
    return {
        name: np.array([getattr(context, name) for context in contexts], object)[codes]
        for name in Context._fields
    }
