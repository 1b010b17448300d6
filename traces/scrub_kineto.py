"""Scrubbing a trace of torch.profiler: written anew, event by event, from what ingestion reads.

The categories and arguments are those of `traces.readers.kineto_columns`. Times count from the first event;
the moment that they counted from (baseTimeNanoseconds, or 1970 in older traces) goes.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from traces.readers import UnreadableTrace
from traces.readers.kineto_columns import CALL, DEVICE, LATEST, OPERATION, SPAN
from traces.readers.kineto_events import Broken, Events
from traces.readers.packed import pieces, written
from traces.scrub_names import Names

Event = dict[str, Any]

# Of a merged trace's processes: which rank they are of ("[TP00] 1234").
_LABEL = re.compile(r"(\[[A-Z]{2,4}-?\d{1,5}(?:[-_ ,][A-Z]{2,4}-?\d{1,5})*\]) ", re.ASCII)
_NEEDED = {*DEVICE, *SPAN, *CALL}
_FIELDS = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"}
_ALIKE = {"Input dims": "Input Dims", "external id": "External id"}


def scrub_kineto(source: Path, target: Path, names: Names) -> None:
    """Write a trace's events again without what they tell of their origin. Raises UnreadableTrace."""
    events, rewriter = Events(pieces(source)), Rewriter(names)
    with written(target) as file:
        try:
            file.write(b'{"traceEvents":[')
            separator = b""
            for batch in events.batches():
                kept = [orjson.dumps(new) for event in batch if (new := rewriter.event(event)) is not None]
                if kept:
                    file.write(separator + b",\n".join(kept))
                    separator = b",\n"
        except Broken as error:
            what = f"{error.what} at byte {error.at}"
            raise UnreadableTrace(f"{source}: no trace of torch.profiler: {what}") from None
        header = orjson.dumps(_header(events.header, names))[1:-1]
        file.write(b"]" + (b"," + header if header else b"") + b"}\n")


def _header(header: dict[str, Any], names: Names) -> dict[str, Any]:
    """Devices and ranks."""
    found: dict[str, Any] = {}
    devices = header.get("deviceProperties")
    if isinstance(devices, list):
        found["deviceProperties"] = [
            {"id": device.get("id"), "name": names.hardware(str(device.get("name", "")))}
            for device in devices
            if isinstance(device, dict) and type(device.get("id")) is int
        ]
        names.drop(
            "properties of devices", sum(len(device) - 2 for device in devices if isinstance(device, dict))
        )
    job = header.get("distributedInfo")
    if isinstance(job, dict):
        kept = {name: job[name] for name in ("rank", "world_size") if type(job.get(name)) is int}
        found["distributedInfo"] = kept
        names.drop("facts about the job", len(job) - len(kept))
    names.drop("facts about the recording", len(header.keys() - found.keys()))
    return found


@dataclass(slots=True)
class Rewriter:
    """Makes new events of old ones."""

    names: Names
    origin: int | None = None  # microseconds of the first event: new times count from there

    def event(self, event: Any) -> Event | None:
        """What stays of an event; None if ingestion does not use it, or could not."""
        category = event.get("cat") if isinstance(event, dict) else None
        if not isinstance(category, str) or category not in _NEEDED or event.get("ph") != "X":
            label = isinstance(event, dict) and event.get("ph") == "M"
            self.names.drop("names of processes and threads" if label else "events that are not needed")
            return None
        try:
            return self._rewritten(event, category)
        except (KeyError, TypeError, AttributeError):
            self.names.drop("events that are malformed")
            return None

    def _rewritten(self, event: Event, category: str) -> Event:
        names, args = self.names, event.get("args") or {}
        if not isinstance(args, dict) and SPAN.get(category, OPERATION) != OPERATION:
            args = {}  # ingestion looks at none of these
        new: Event = {"ph": "X", "cat": category, "name": _name(_text(event["name"]), category, names)}
        new["pid"], new["tid"] = (_who(kind, event[kind], names) for kind in ("pid", "tid"))
        new["ts"] = self._since(_time(event["ts"]))
        if category not in CALL:
            new["dur"] = _time(event["dur"])
        if kept := _args(event, args, category, names):
            new["args"] = kept
        names.drop("arguments of events", len(args) - len(kept.keys() & args.keys()))
        names.drop("fields of events", len(event.keys() - _FIELDS))
        return new

    def _since(self, time: float) -> float:
        """Time since the first event: exact, as a double from which a whole number is taken gets smaller."""
        if self.origin is None:
            self.origin = math.floor(time)
        return time - self.origin


def _name(text: str, category: str, names: Names) -> str:
    if category in DEVICE:
        return names.kernel(text)
    if category in CALL:
        return names.call(text)
    if category == "user_annotation":
        return names.annotation(text)
    return names.frame(text) if category.lower().startswith("python") else names.operator(text)


def _args(event: Event, args: Event, category: str, names: Names) -> Event:
    """The arguments that ingestion reads, as integers."""
    found: Event = {}
    args = {_ALIKE.get(name, name): value for name, value in args.items()}
    if category in DEVICE:
        found["device"] = _integer(args.get("device", event["pid"]))
        found["stream"] = _integer(args.get("stream", event["tid"]))
        if args.get("graph node id"):
            found["graph node id"] = 1
    for name in _ids(category):
        if name in args:
            found[name] = names.number(name, _integer(args[name]))
    if args.get("Input Dims") and SPAN.get(category) == OPERATION:
        dims, dtypes = args["Input Dims"], args.get("Input type") or []
        for read in (dims, dtypes):
            orjson.dumps(read)  # what is too deep or too large for ingestion is so here
        try:
            found["Input Dims"], found["Input type"] = names.shapes(dims), names.dtypes(dtypes)
            if scalars := names.scalars(args.get("Concrete Inputs")):
                found["Concrete Inputs"] = orjson.loads(scalars)
        except ValueError:
            raise TypeError from None
    return found


def _ids(category: str) -> tuple[str, ...]:
    """The ids of a category of events that ingestion joins by."""
    if category in DEVICE:
        return ("correlation", "External id")
    if category in CALL:
        return ("correlation",)
    return ("External id",) if SPAN[category] == OPERATION else ()


def _who(kind: str, old: Any, names: Names) -> int | str:
    """A number in the place of a process or thread; the rank of a merged trace stays before it."""
    if type(old) is int:
        return names.number(kind, old)
    if not isinstance(old, str):
        raise TypeError
    label = _LABEL.match(old)
    number = names.number(f"{kind} in words", old)
    return f"{label[1]} {number}" if label else f"{kind} {number}"


def _text(value: Any) -> str:
    """A text that can be written; half characters are replaced, as ingestion does."""
    if not isinstance(value, str):
        raise TypeError
    return value.encode(errors="replace").decode()


def _integer(value: Any) -> int:
    if type(value) is not int or abs(value) >= 1 << 62:
        raise TypeError
    return value


def _time(value: Any) -> float:
    if not isinstance(value, int | float) or not -LATEST < value < LATEST:
        raise TypeError
    return value
