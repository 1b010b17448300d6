"""Scrubbing CSV files: a plain one, and those of rocprofv3. Columns that ingestion reads are written anew."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas

from atrex.errors import UsageError
from traces.readers import plain, rocprof
from traces.readers.database import MISSING
from traces.readers.packed import written
from traces.readers.tables import integers, numbers, pieces
from traces.scrub_names import Names
from traces.scrub_nsys import range_text

Change = Callable[["pandas.Series[str]"], Any]


def scrub_plain(source: Path, target: Path, names: Names) -> None:
    """Write a plain CSV again. Raises UnreadableTrace, and ValueError for a step that cannot be cut."""

    def listed(text: str, change: Callable[[Any], Any]) -> str:
        return json.dumps(change(json.loads(text)), separators=(",", ":")) if text else ""

    def notes(text: str) -> str:
        found = json.loads(plain.annotations_of(text))
        return json.dumps([names.annotation(one) for one in found]) if found else ""

    def each(change: Callable[[str], Any]) -> Change:
        return lambda column: [change(text) if text else "" for text in column]

    changes: dict[str, Change] = {
        "kernel": each(names.kernel),
        "operator": each(names.operator),
        "module": each(names.module),
        "shapes": each(lambda text: listed(text, names.shapes)),
        "dtypes": each(lambda text: listed(text, names.dtypes)),
        "scalars": each(lambda text: names.scalars(json.loads(text))),
        "annotations": each(notes),
        "kind": each(lambda text: text if text in plain.KINDS else ""),
        **dict.fromkeys(("duration_us", *plain.NUMBERS), _numbers),
    }
    _rewrite(source, target, changes, names)


def _numbers(column: pandas.Series[str]) -> list[str]:
    """Numbers as numbers: whatever else a text might say is lost."""
    found = numbers(column)
    return ["" if text == "" else repr(float(value)) for text, value in zip(column, found, strict=True)]


def scrub_rocprof(source: Path, target: Path, names: Names) -> None:
    """Write a kernel trace and the files beside it again. Raises UnreadableTrace and UsageError."""
    if not target.name.endswith(rocprof.KERNELS):
        raise UsageError(f"{target}: name it PREFIX_{rocprof.KERNELS}: files beside it go by that name")

    def texts(change: Callable[[str], str]) -> Change:
        return lambda column: [change(text) for text in column]

    def ids(kind: str) -> Change:
        return lambda column: [_id(names, kind, value) for value in integers(column, MISSING)]

    def whole(column: pandas.Series[str]) -> list[str]:
        return ["" if value == MISSING else str(value) for value in integers(column, MISSING)]

    def agents(column: pandas.Series[str]) -> list[str]:
        return ["" if value == MISSING else f"Agent {value}" for value in rocprof.agents(column)]

    def said(text: str) -> str:
        return text if text == rocprof.NO_RANGE else range_text(text, names)

    times = dict.fromkeys(rocprof.TIMES, whole)
    shared = {"correlation_id": ids("correlation"), "thread_id": ids("thread"), **times}
    place = {"agent_id": agents, "queue_id": ids("queue"), "stream_id": ids("stream")}
    copied = dict.fromkeys(set(rocprof.COPY_DEVICE.values()), agents)
    files: dict[str, dict[str, Change]] = {
        rocprof.KERNELS: {"kernel_name": texts(names.kernel), **place, **shared},
        rocprof.COPIES: {"direction": texts(_direction), "stream_id": ids("stream"), **copied, **shared},
        rocprof.CALLS: {
            "domain": texts(lambda _: "HIP_RUNTIME_API"),
            "function": texts(lambda _: "call"),
            **shared,
        },
        rocprof.MARKERS: {
            "domain": texts(_domain),
            "function": texts(said),
            **shared,
        },
        rocprof.AGENTS: {
            "node_id": whole,
            "logical_node_id": whole,
            "agent_type": texts(lambda text: text if text in ("CPU", "GPU") else ""),
            "name": texts(names.hardware),
            "product_name": texts(lambda text: names.hardware(text) if text else ""),
        },
    }
    for name, changes in files.items():
        old = rocprof.beside(source, name)
        if old.is_file():
            _rewrite(old, rocprof.beside(target, name), changes, names)


def _id(names: Names, kind: str, value: Any) -> str:
    return "" if value == MISSING else str(names.number(kind, int(value)))


def _direction(text: str) -> str:
    return text if text.removeprefix("MEMORY_COPY_") in (*rocprof.COPY_DEVICE, "HOST_TO_HOST") else ""


def _domain(text: str) -> str:
    return rocprof.SEEN if text.startswith(rocprof.SEEN) else ""


def _rewrite(source: Path, target: Path, changes: dict[str, Change], names: Names) -> None:
    """Write the columns that have a change, changed."""
    with written(target) as raw, io.TextIOWrapper(raw, "utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        first = True
        for piece in pieces(source):
            kept = [name for name in piece.columns if name in changes]
            if first:
                names.drop("columns", len(piece.columns) - len(kept))
                writer.writerow(kept)
                first = False
            columns = [changes[name](piece[name]) for name in kept]
            writer.writerows(zip(*columns, strict=True))
