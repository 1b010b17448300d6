"""What was open around each launch call: operations, annotations, modules, functions.

A span is around a call if it is on its thread, began no later and ended later. Calls are sorted by thread
and time, so a span is around a run of them, which two searches find. Spans come outermost first, so of two
that are around the same call the later is the inner one. Nothing is assumed of how spans nest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traces.readers.kineto_columns import ANNOTATION, FUNCTION, MODULE, OPERATION, Columns

DEEPEST = 512  # spans of one kind around one call: more are no program's
BLOCK = 1 << 21  # pairs of a span and a call that are handled at once

Integers = NDArray[np.int64]


class TooDeep(Exception):
    """Spans that nest as no program's do."""


@dataclass(slots=True)
class Paths:
    """Lists of texts, each with a number; the empty one is 0."""

    ends: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])  # of each: what it extends, by what
    known: dict[int, int] = field(default_factory=dict)

    def extended(self, paths: Integers, names: Integers) -> Integers:
        """The paths, each with one more text at its end."""
        steps, places = np.unique((paths << 32) | names, return_inverse=True)
        codes = [self._code(step) for step in steps.tolist()]
        found: Integers = np.array(codes, np.int64)[places]
        return found

    def _code(self, step: int) -> int:
        if (code := self.known.get(step)) is None:
            self.known[step] = code = len(self.ends)
            self.ends.append((step >> 32, step & 0xFFFFFFFF))
        return code

    def text(self, path: int, texts: list[str]) -> str:
        """A path as a JSON array."""
        names: list[str] = []
        while path:
            path, name = self.ends[path]
            names.append(texts[name])
        return json.dumps(names[::-1], ensure_ascii=False)


@dataclass(slots=True)
class Calls:
    """Launch calls, by thread and time, and what is around each of them; texts are numbers, 0 is none."""

    threads: Integers
    times: NDArray[np.float64]
    depth: Integers = field(init=False)
    operator: Integers = field(init=False)
    shapes: Integers = field(init=False)
    dtypes: Integers = field(init=False)
    scalars: Integers = field(init=False)
    module: Integers = field(init=False)
    function: Integers = field(init=False)
    stack: Integers = field(init=False)
    notes: Integers = field(init=False)
    stacks: Paths = field(default_factory=Paths)
    annotations: Paths = field(default_factory=Paths)

    def __post_init__(self) -> None:
        for name in ("operator", "shapes", "dtypes", "scalars", "module", "function", "stack", "notes"):
            setattr(self, name, np.zeros(len(self.times), np.int64))
        self.depth = np.zeros((4, len(self.times)), np.int64)

    def look_at(self, spans: Columns) -> None:
        """Take in spans, outer ones before inner ones. Raises TooDeep."""
        first, last = self._runs(spans)
        around = first < last
        first, last = first[around], last[around]
        kept = {name: column[around] for name, column in spans.items()}
        for kind in (OPERATION, ANNOTATION, MODULE, FUNCTION):
            of_kind = kept["kind"] == kind
            if of_kind.any():
                own = {name: column[of_kind] for name, column in kept.items()}
                self._deepen(kind, first[of_kind], last[of_kind])
                for which, calls in _pairs(first[of_kind], last[of_kind]):
                    self._note(kind, {name: column[which] for name, column in own.items()}, calls)

    def _runs(self, spans: Columns) -> tuple[Integers, Integers]:
        """The run of calls that each span is around: the first, and the first behind it."""
        first, last = (np.zeros(len(spans["thread"]), np.int64) for _ in range(2))
        begins = np.flatnonzero(np.diff(spans["thread"], prepend=-1))
        for begin, end in zip(begins, [*begins[1:], len(first)], strict=True):
            low, high = np.searchsorted(self.threads, [spans["thread"][begin], spans["thread"][begin] + 1])
            times = self.times[low:high]
            first[begin:end] = low + np.searchsorted(times, spans["start"][begin:end])
            last[begin:end] = low + np.searchsorted(times, spans["stop"][begin:end])
        return first, last

    def _deepen(self, kind: int, first: Integers, last: Integers) -> None:
        steps = np.bincount(first, minlength=len(self.times) + 1)
        steps -= np.bincount(last, minlength=len(self.times) + 1)
        self.depth[kind] += np.cumsum(steps)[:-1]
        if len(self.times) and self.depth[kind].max() > DEEPEST:
            raise TooDeep

    def _note(self, kind: int, spans: Columns, calls: Integers) -> None:
        """Write down spans (columns as long as `calls`) at the calls they are around."""
        if kind == OPERATION:
            # Where an index repeats, numpy keeps the last value: the innermost operation.
            self.operator[calls] = spans["name"]
            shaped = spans["shapes"] > 0
            for name in ("shapes", "dtypes", "scalars"):
                getattr(self, name)[calls[shaped]] = spans[name][shaped]
            _extend(self.stack, self.stacks, calls, spans["name"])
        elif kind == ANNOTATION:
            _extend(self.notes, self.annotations, calls, spans["name"])
        elif kind == MODULE:
            self.module[calls] = spans["name"]
        else:
            self.function[calls] = spans["name"]


def _pairs(first: Integers, last: Integers) -> Iterator[tuple[Integers, Integers]]:
    """Spans and calls that belong together, span by span, in blocks of bounded size."""
    counts = last - first
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(counts):
        before = ends[begin] - counts[begin]
        end = max(begin + 1, int(np.searchsorted(ends, before + BLOCK, side="right")))
        own = counts[begin:end]
        which = np.repeat(np.arange(begin, end), own)
        offsets = np.arange(int(own.sum())) - np.repeat(ends[begin:end] - own - before, own)
        yield which, np.repeat(first[begin:end], own) + offsets
        begin = end


def _extend(ends: Integers, paths: Paths, calls: Integers, names: Integers) -> None:
    """Append names to the paths of calls, in the order given, where a call may appear many times."""
    order = np.argsort(calls, kind="stable")
    calls, names = calls[order], names[order].astype(np.int64)
    begins = np.flatnonzero(np.diff(calls, prepend=-1))
    level = np.arange(len(calls)) - np.repeat(begins, np.diff(begins, append=len(calls)))
    for depth in range(int(level.max(initial=-1)) + 1):
        own = level == depth
        ends[calls[own]] = paths.extended(ends[calls[own]], names[own])
