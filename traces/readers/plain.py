"""A plain CSV of launches, for any tool that has no reader of its own (docs/traces_scrub.md).

    kernel,duration_us,start_us,stream,operator,shapes
    void gemm<float>(float*),12.5,100.0,7,aten::mm,"[[512, 64], [64, 512]]"

Where another tool's mistake is counted and left out, a wrong line here is an error: the file was written for
this reader, and whoever wrote it can mend it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from traces.profile import UNKNOWN
from traces.readers import Reading, UnreadableTrace
from traces.readers.tables import Floats, header_of, numbers, pieces, shown
from traces.scalars import kept

NEEDED = ("kernel", "duration_us")
TEXTS = ("operator", "module", "shapes", "dtypes", "scalars", "annotations", "kind")
NUMBERS = ("start_us", "device", "stream", "launches")
KNOWN = (*NEEDED, *TEXTS, *NUMBERS)
KINDS = ("kernel", "copy", "fill")
MOST_LAUNCHES = 50_000_000  # of all rows
LATEST = 1e15  # microseconds: thirty years


def sniff(head: bytes, path: Path) -> bool:
    """Whether the first line names a kernel column."""
    return path.name.lower().endswith((".csv", ".csv.gz")) or "kernel" in map(str.lower, header_of(head))


def read(path: Path) -> Reading:
    """The launches of a plain CSV. Raises UnreadableTrace, which names line and column."""
    tables, unknown = [], set[str]()
    timed = True
    for piece in pieces(path):
        if absent := [name for name in NEEDED if name not in piece.columns]:
            have = ", ".join(map(shown, piece.columns[:8]))
            raise UnreadableTrace(
                f"{path}: no column {absent[0]} (there are: {have}); {', '.join(NEEDED)} are needed"
            )
        timed = "start_us" in piece.columns
        unknown |= {str(name) for name in piece.columns} - set(KNOWN)
        tables.append(_launches(path, piece))
        if sum(map(len, tables)) > MOST_LAUNCHES:
            raise UnreadableTrace(f"{path}: stands for more than {MOST_LAUNCHES} launches: split it")
    if not sum(map(len, tables)):
        raise UnreadableTrace(f"{path}: holds no launch; a line with kernel and duration_us makes one")
    launches = pandas.concat(tables, ignore_index=True)
    complaints = []
    if unknown:
        complaints.append(f"columns that mean nothing here: {', '.join(map(shown, sorted(unknown)[:8]))}")
    if not timed:
        complaints.append(
            "no column start_us: launches are laid end to end, so overlap and pauses are unknown"
        )
        launches["start_us"] = _end_to_end(launches)
    return Reading("csv", launches, complaints=tuple(complaints))


def _launches(path: Path, piece: pandas.DataFrame) -> pandas.DataFrame:
    """One piece of the file as launches; a row of several is laid end to end from its start."""
    texts = {name: piece[name] if name in piece.columns else UNKNOWN for name in (*TEXTS, "kernel")}
    table = pandas.DataFrame(texts, index=piece.index)
    table["duration_us"] = _number(
        path, piece, "duration_us", lambda found: (found >= 0) & (found < LATEST), "a number of at least 0"
    )
    table["start_us"] = _number(path, piece, "start_us", lambda found: abs(found) < LATEST, "a number", 0.0)
    for name in ("device", "stream"):
        whole = _number(path, piece, name, _is_count, "a whole number of at least 0", 0.0)
        table[name] = whole.astype(np.int64)
    times = _number(
        path,
        piece,
        "launches",
        lambda found: _is_count(found) & (found > 0),
        "a whole number of at least 1",
        1.0,
    )
    if times.sum() > MOST_LAUNCHES:
        raise UnreadableTrace(f"{path}: stands for more than {MOST_LAUNCHES} launches: split it")
    _check_texts(path, table)
    repeated = table.loc[table.index.repeat(times.astype(np.int64))]
    earlier = repeated.groupby(level=0).cumcount().to_numpy(np.float64)
    starts = repeated["start_us"].to_numpy() + earlier * repeated["duration_us"].to_numpy()
    return repeated.assign(start_us=starts, graph=False)


def _is_count(found: Floats) -> Any:
    return (found >= 0) & (found == np.floor(found)) & (found < 2**53)


def _number(
    path: Path,
    piece: pandas.DataFrame,
    name: str,
    good: Callable[[Floats], Any],
    what: str,
    absent: float | None = None,
) -> Floats:
    """A column of numbers. Raises UnreadableTrace at the first that is none, or none of this kind."""
    if name not in piece.columns and absent is not None:
        return np.full(len(piece), absent)
    found = numbers(piece[name])
    if absent is not None:
        found[(piece[name] == "").to_numpy(bool)] = absent
    with np.errstate(invalid="ignore"):
        bad = np.flatnonzero(~(np.isfinite(found) & good(found)))
    if len(bad):
        line, text = piece.index[bad[0]], shown(piece[name].iloc[bad[0]])
        raise UnreadableTrace(f"{path}: line {line}: {name} is {text}: give {what}")
    return found


def _check_texts(path: Path, table: pandas.DataFrame) -> None:
    """Fill what is empty, and bring lists into the launch table's form."""
    table["kind"] = table["kind"].replace("", "kernel")
    for name, good, what in (
        ("kind", table["kind"].isin(KINDS), "kernel, copy or fill"),
        ("kernel", table["kernel"] != "", "a name"),
        ("shapes", table["shapes"].map(_is_list), "a JSON list, as [[512, 64], []]"),
        ("dtypes", table["dtypes"].map(_is_list), 'a JSON list, as ["c10::BFloat16"]'),
        ("scalars", table["scalars"].map(_is_list), 'a JSON list of texts, as ["", "1e-06"]'),
    ):
        if not good.all():
            line = table.index[int(np.argmin(good.to_numpy(bool)))]
            text = shown(table.loc[line, name])
            raise UnreadableTrace(f"{path}: line {line}: {name} is {text}: give {what}")
    table["stack"] = table["operator"].map(
        lambda text: json.dumps([text] if text else [], ensure_ascii=False)
    )
    for name in ("shapes", "dtypes"):
        table[name] = table[name].map(
            lambda text: text and json.dumps(json.loads(text), separators=(",", ":"))
        )
    table["scalars"] = table["scalars"].map(lambda text: kept(json.loads(text)) if text else UNKNOWN)
    table["annotations"] = table["annotations"].map(annotations_of)


def _is_list(text: str) -> bool:
    try:
        return text == "" or isinstance(json.loads(text), list)
    except (ValueError, RecursionError):
        return False


def annotations_of(text: str) -> str:
    """A JSON list of texts, outermost first; any other text is one annotation."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not (isinstance(found, list) and all(isinstance(one, str) for one in found)):
        found = [text] if text else []
    return json.dumps(found, ensure_ascii=False)


def _end_to_end(launches: pandas.DataFrame) -> pandas.Series[float]:
    """Starts that put the launches of each device one behind the other."""
    ends = launches.groupby("device")["duration_us"].cumsum()
    return ends - launches["duration_us"]
