"""Events of a Kineto trace as columns of numbers: all that is kept of a file of gigabytes.

Three tables, whose texts and threads are numbers into lists:

    device   activities of a device: kernels, copies, fills
    call     calls of the runtime or the driver, one of which launched each activity; they share a correlation
    span     what a thread was doing: operations, annotations, modules, Python functions

Names of categories and arguments are those of libkineto (`ActivityType.h`, `output_json.cpp`), which ROCm's
build shares; names with capitals are those of its first releases.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from traces.scalars import kept

LATEST = float(1 << 53)  # microseconds, 285 years: a double counts no further
MOST_TEXT = 1 << 28  # characters of distinct names and shapes
NONE = -1

DEVICE = {
    "kernel": 0,
    "Kernel": 0,
    "gpu_memcpy": 1,
    "Memcpy": 1,
    "gpu_memset": 2,
    "Memset": 2,
}
CALL = ("cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "Runtime", "Driver")
OPERATION, ANNOTATION, MODULE, FUNCTION = range(4)
SPAN = {
    "cpu_op": OPERATION,
    "Operator": OPERATION,
    "user_annotation": ANNOTATION,
    "python_function": FUNCTION,
    "Python": FUNCTION,
}
_MODULE = re.compile(r"nn\.Module: (.*?)(?:_\d+)?")  # of one kind, whichever instance
_STEP = re.compile(r"(ProfilerStep)#\d+")  # of torch.profiler.schedule: a counter says nothing of a launch
_LABEL = re.compile(r"(\[[^\]]*\]) .*", re.DOTALL)  # before the process in a merged trace of SGLang: [TP00]

Column = NDArray[Any]
Columns = dict[str, Column]

TYPES: dict[str, dict[str, type]] = {
    "device": {
        "kind": np.int8,
        "name": np.int32,
        "thread": np.int32,
        "device": np.int32,
        "stream": np.int64,
        "start": np.float64,
        "duration": np.float64,
        "correlation": np.int64,
        "external": np.int64,
        "node": np.bool_,  # whether it is a node of a captured graph
    },
    "call": {"name": np.int32, "thread": np.int32, "start": np.float64, "correlation": np.int64},
    "span": {
        "kind": np.int8,
        "name": np.int32,
        "thread": np.int32,
        "start": np.float64,
        "stop": np.float64,
        "external": np.int64,
        "shapes": np.int32,
        "dtypes": np.int32,
        "scalars": np.int32,
    },
}


class TooMuchText(Exception):
    """A trace whose names are all different."""


class Thread(NamedTuple):
    """Who made an event: numbers or texts, as the trace has them."""

    process: int | str
    thread: int | str

    @property
    def label(self) -> str:
        """The rank that a merged trace says it is of; empty in the trace of one rank."""
        found = _LABEL.fullmatch(self.process) if isinstance(self.process, str) else None
        return found[1] if found else ""


@dataclass(slots=True)
class Reader:
    """Takes events in, and gives them out as tables."""

    texts: dict[str, int] = field(default_factory=lambda: {"": 0})
    scalars: dict[tuple[Any, ...], int] = field(default_factory=dict)  # as recorded: the text of what is kept
    threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    unusable: Counter[str] = field(default_factory=Counter)
    known: int = 0  # events of a kind that torch.profiler writes
    characters: int = 0
    rows: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: {name: [] for name in TYPES})

    def take(self, events: Iterable[Any]) -> None:
        """Keep what counts of some events. Raises TooMuchText."""
        handlers = self._handlers()
        for event in events:
            try:
                category = event.get("cat")
                handler = handlers.get(category)
                if handler is None:
                    continue
                if event["ph"] != "X":
                    raise ValueError
                handler(event)
            except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
                self.unusable[_what_is_wrong(event)] += 1

    @property
    def waiting(self) -> int:
        """Rows that were taken in and not given out."""
        return sum(len(rows) for rows in self.rows.values())

    def tables(self) -> dict[str, Columns]:
        """The rows since the last time, a column each; none of an empty table."""
        found: dict[str, Columns] = {}
        for table, rows in self.rows.items():
            if rows:
                columns = zip(*rows, strict=True)
                types = TYPES[table].items()
                found[table] = {
                    name: np.array(column, kind) for (name, kind), column in zip(types, columns, strict=True)
                }
                self.known += len(rows)
                rows.clear()
        return found

    def listed_texts(self) -> tuple[str, ...]:
        """The text of each number."""
        found = dict.fromkeys(range(len(self.texts)), "")
        for text, code in reversed(self.texts.items()):
            found[code] = text
        return tuple(found.values())

    def _handlers(self) -> dict[Any, Callable[[dict[str, Any]], None]]:
        handlers: dict[Any, Callable[[dict[str, Any]], None]] = {}
        handlers |= {name: self._device_as(kind) for name, kind in DEVICE.items()}
        handlers |= {name: self._span_as(kind) for name, kind in SPAN.items() if kind != OPERATION}
        handlers |= {name: self._operation() for name, kind in SPAN.items() if kind == OPERATION}
        handlers |= dict.fromkeys(CALL, self._call())
        return handlers

    def _device_as(self, kind: int) -> Callable[[dict[str, Any]], None]:
        rows, text, thread = self.rows["device"], self._text, self._thread

        def take(event: dict[str, Any]) -> None:
            start, duration, args = event["ts"], event["dur"], event.get("args") or {}
            if not (-LATEST < start < LATEST and 0 <= duration < LATEST):
                raise ValueError
            device = _number(args.get("device", event["pid"]))
            if not 0 <= device < 1 << 31:
                raise ValueError
            stream = _number(args.get("stream", event["tid"]))
            correlation, external = (_number(args.get(name, NONE)) for name in ("correlation", "External id"))
            node, name, who = bool(args.get("graph node id")), text(event["name"]), thread(event)
            rows.append((kind, name, who, device, stream, start, duration, correlation, external, node))

        return take

    def _call(self) -> Callable[[dict[str, Any]], None]:
        rows, text, thread = self.rows["call"], self._text, self._thread

        def take(event: dict[str, Any]) -> None:
            start, correlation = event["ts"], event["args"].get("correlation")
            if not -LATEST < start < LATEST:
                raise ValueError
            if correlation is not None:  # a call without one launches nothing
                rows.append((text(event["name"]), thread(event), start, _number(correlation)))

        return take

    def _operation(self) -> Callable[[dict[str, Any]], None]:
        rows, text, thread, known = self.rows["span"], self._text, self._thread, self.scalars

        def take(event: dict[str, Any]) -> None:
            start, duration, args = event["ts"], event["dur"], event.get("args") or {}
            if not (-LATEST < start < LATEST and 0 <= duration < LATEST):
                raise ValueError
            external = args.get("External id", args.get("external id", NONE))
            shapes = dtypes = scalars = 0
            if dims := args.get("Input Dims", args.get("Input dims")):
                shapes = text(orjson.dumps(dims).decode())
                dtypes = text(orjson.dumps(args.get("Input type") or []).decode())
                concrete: Any = args.get("Concrete Inputs")
                try:
                    scalars = known[tuple(concrete)] if type(concrete) is list else 0
                except (KeyError, TypeError):
                    scalars = self._scalars(concrete)
            name, who, stop = text(event["name"]), thread(event), start + duration
            rows.append((OPERATION, name, who, start, stop, _number(external), shapes, dtypes, scalars))

        return take

    def _span_as(self, kind: int) -> Callable[[dict[str, Any]], None]:
        rows, text, thread = self.rows["span"], self._text, self._thread

        def take(event: dict[str, Any]) -> None:
            start, duration, name, own = event["ts"], event["dur"], event["name"], kind
            if not (-LATEST < start < LATEST and 0 <= duration < LATEST):
                raise ValueError
            if kind == FUNCTION and (module := _MODULE.fullmatch(name)):
                own, name = MODULE, module[1]
            elif kind == ANNOTATION:
                name = _STEP.sub(r"\1", name)
            rows.append((own, text(name), thread(event), start, start + duration, NONE, 0, 0, 0))

        return take

    def _scalars(self, given: list[Any]) -> int:
        """The text of what is kept of an operation's scalar arguments, remembered for the next time."""
        code = self._text(kept(given))
        if all(isinstance(one, str) for one in given):
            self._count(len(given) + sum(map(len, given)))
            self.scalars[tuple(given)] = code
        return code

    def _text(self, text: str) -> int:
        if (code := self.texts.get(text)) is not None:
            return code
        whole = text.encode(errors="replace").decode()  # what is half a character in the file
        self._count(len(text))
        if whole != text:
            self.texts[text] = code = self._text(whole)
            return code
        self.texts[text] = code = len(self.texts)
        return code

    def _count(self, characters: int) -> None:
        """Note what is remembered of texts. Raises TooMuchText."""
        self.characters += characters
        if self.characters > MOST_TEXT:
            raise TooMuchText

    def _thread(self, event: dict[str, Any]) -> int:
        who = event["pid"], event["tid"]
        if (code := self.threads.get(who)) is not None:
            return code
        if not all(type(part) in (int, str) for part in who):
            raise TypeError
        self.threads[who] = code = len(self.threads)
        return code


def _number(value: Any) -> int:
    """An integer of 63 bits. Raises TypeError or ValueError."""
    if type(value) is not int:
        raise TypeError
    if not -(1 << 62) < value < 1 << 62:
        raise ValueError
    return value


def _what_is_wrong(event: Any) -> str:
    """Why an event cannot be used, in a few words."""
    if not isinstance(event, dict):
        return "events that are no objects"
    category = event.get("cat")
    if not isinstance(category, str):
        return "events whose category is no text"
    if event.get("ph") != "X":
        return f"{category} events without a duration of their own"
    start: Any = event.get("ts")
    duration: Any = event.get("dur")
    if not all(isinstance(time, int | float) and time == time for time in (start, duration)):
        return f"{category} events without a time or a duration"
    if duration < 0:
        return f"{category} events of negative duration"
    if not (-LATEST < start < LATEST and duration < LATEST):
        return f"{category} events at no possible time"
    return f"{category} events with a field of the wrong type"
