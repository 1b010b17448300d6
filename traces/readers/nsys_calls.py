"""Nsight Systems: what the host did. Which call launched what, on which thread, within which NVTX ranges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas

from traces.readers.database import MISSING, Database, integers
from traces.readers.ranges import FOREVER, Ranges, columns_of

CALLS, RANGES, STRINGS = "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "StringIds"
RANGE_TYPES = (35, 37, 59, 60, 70, 71)  # ENUM_NSYS_EVENT_TYPE: push/pop and start/end, NVTX's and NVTXT's
PROCESS = 24  # bits of a thread below its process, in globalTid and globalPid


def strings(base: Database, used: str) -> Iterator[tuple[int, str]]:
    """The ids that a query gives, with their texts."""
    if base.has(STRINGS, "id", "value"):
        for batch in base.rows(f"SELECT id, value FROM {STRINGS} WHERE id IN ({used})"):
            yield from ((key, text) for key, text in batch if type(key) is int and isinstance(text, str))


def around(base: Database, launches: pandas.DataFrame, complaints: list[str]) -> dict[str, Any]:
    """Operation, stack, shapes and annotations of every launch: columns of the launch table."""
    calls = _calls(base, launches, complaints)
    ranges = _ranges(base, complaints)
    codes, contexts = ranges.around(calls["globalTid"].to_numpy(), calls["start"].to_numpy())
    if ranges.dropped:
        complaints.append(f"{ranges.dropped} ranges within very many others: left out")
    return columns_of(codes, contexts)


def _calls(base: Database, launches: pandas.DataFrame, complaints: list[str]) -> pandas.DataFrame:
    """Thread and start of the call of each launch, in their order; MISSING where none was recorded."""
    columns = ["globalTid", "start", "correlationId"]
    if not base.has(CALLS, *columns):
        complaints.append(f"no table {CALLS}: which ranges launched what is unknown")
        return pandas.DataFrame(MISSING, index=launches.index, columns=columns[:2])
    pieces = [pandas.DataFrame(columns=columns, dtype=np.int64)]
    wanted = launches["correlationId"].unique()
    for batch in base.select(CALLS, columns):
        values = zip(columns, zip(*batch, strict=True), strict=True)
        piece = pandas.DataFrame({name: integers(column, len(batch)) for name, column in values})
        good = np.isin(piece["correlationId"], wanted) & (piece != MISSING).all(axis=1)
        pieces.append(piece[good])
    calls = pandas.concat(pieces, ignore_index=True).sort_values("start", kind="stable")
    calls["process"] = calls["globalTid"].to_numpy() >> PROCESS
    asked = launches[["correlationId"]].assign(process=launches["globalPid"].to_numpy() >> PROCESS)
    keys = ["correlationId", "process"]
    if (launches["globalPid"] == MISSING).all() and calls["process"].nunique() == 1:
        keys = ["correlationId"]
    # A call of the runtime makes one of the driver, with the same id: the outer one begins first.
    calls = calls.drop_duplicates(keys).reset_index(drop=True)
    found = pandas.MultiIndex.from_frame(calls[keys]).get_indexer(pandas.MultiIndex.from_frame(asked[keys]))
    if count := int((found < 0).sum()):
        complaints.append(f"{count} launches whose CUDA call was not recorded: their ranges are unknown")
    # -1 takes the row behind the last one, which holds nothing.
    nothing = pandas.DataFrame(MISSING, index=[len(calls)], columns=columns[:2])
    return pandas.concat([calls[columns[:2]], nothing]).iloc[found].reset_index(drop=True)


def _ranges(base: Database, complaints: list[str]) -> Ranges:
    """The NVTX ranges; marks, categories and the like are none."""
    ranges = Ranges()
    if not base.has(RANGES, "start", "end", "globalTid"):
        complaints.append(f"no table {RANGES}: operations and steps are unknown (nsys --trace=cuda,nvtx)")
        return ranges
    typed, shared = ("eventType" in base.tables[RANGES], "textId" in base.tables[RANGES])
    used = f"SELECT textId FROM {RANGES}"
    codes = {key: ranges.code(text) for key, text in strings(base, used)} if shared else {}
    rest = f"WHERE eventType IN {RANGE_TYPES}" if typed else ""
    for batch in base.select(RANGES, ("globalTid", "start", "end", "textId", "text"), rest):
        found = [
            # The end is missing where the recording ended first.
            (thread, start, FOREVER if end is None and typed else end, code)
            for thread, start, end, key, text in batch
            if (code := ranges.code(text) if isinstance(text, str) else codes.get(key)) is not None
        ]
        if found:
            piece = np.stack([integers(column, len(found)) for column in zip(*found, strict=True)])
            ranges.add(piece[:, (piece != MISSING).all(axis=0)])
    return ranges
