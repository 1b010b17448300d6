"""From launches to entries: what every reader's table of launches becomes.

    entries, devices = condense(launches)

A launch table has one row a launch, in any order, with the columns `COLUMNS`. Texts may be categoricals;
none is missing (an unknown text is empty). Times are microseconds, from any origin.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import pandas
from numpy.typing import NDArray

from traces.profile import DeviceTime, Entry, Gaps

Floats = NDArray[np.float64]

KEYS = (
    "kind",  # kernel, copy or fill
    "kernel",
    "device",  # integer
    "operator",
    "stack",  # JSON array of texts, outermost first
    "module",
    "shapes",  # JSON, as the tool wrote it
    "dtypes",  # JSON, as the tool wrote it
    "scalars",  # JSON array of texts, of what traces.scalars keeps
    "annotations",  # JSON array of texts, outermost first
    "graph",  # whether it was replayed from a captured graph
)
COLUMNS = (*KEYS, "stream", "start_us", "duration_us")
MOST_SCALARS = 32  # different scalar arguments of what is the same otherwise; more are a counter's


class Condensed(NamedTuple):
    """Launches, added up."""

    entries: tuple[Entry, ...]  # by device_us, most first
    devices: tuple[DeviceTime, ...]  # by number


def condense(launches: pandas.DataFrame) -> Condensed:
    """Add up the launches that cannot be told apart, and what each device did.

    The result does not hang on the order of the rows, to the last bit. Raises ValueError if a time is no
    number or a duration is negative: readers leave such launches out, and complain.
    """
    if launches.empty:
        return Condensed((), ())
    columns = (launches[name].to_numpy() for name in ("duration_us", "start_us", "device"))
    table = launches.iloc[np.lexsort(tuple(columns))]
    starts = table["start_us"].to_numpy(np.float64)
    durations = table["duration_us"].to_numpy(np.float64)
    if not (np.isfinite(starts).all() and np.isfinite(durations).all() and durations.min() >= 0):
        raise ValueError("a launch has no start, or no duration of at least 0")
    numbers, streams = table["device"].to_numpy(), table["stream"].to_numpy()
    busy, devices = np.zeros(len(table)), []
    for number in np.unique(numbers):
        rows = numbers == number
        own = starts[rows] - starts[rows].min()
        busy[rows] = shares(own, durations[rows])
        devices.append(_device_time(int(number), own, durations[rows], len(np.unique(streams[rows]))))
    return Condensed(_entries(table, busy), tuple(devices))


def shares(starts: Floats, durations: Floats) -> Floats:
    """What each of one device's launches counts of busy time, in microseconds: together, the union.

    While n launches run, each gets an nth of the time. So a launch's share is the integral of 1/n over its
    time: the difference of one running integral, which a sweep over all starts and ends gives.
    """
    ends = starts + durations
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    swept = times[order]
    running = np.cumsum(np.where(order < len(starts), 1, -1))[:-1]
    rates = np.divide(1.0, running, out=np.zeros(len(running)), where=running > 0)
    integral = np.concatenate([[0.0], np.cumsum(np.diff(swept) * rates)])
    place = np.empty(len(times), np.int64)
    place[order] = np.arange(len(times))
    at = integral[place]
    # Rounding of an end may give a launch more than its duration.
    share: Floats = np.clip(at[len(starts) :] - at[: len(starts)], 0.0, durations)
    return share


def _entries(table: pandas.DataFrame, busy: Floats) -> tuple[Entry, ...]:
    """Rows with equal keys, added up."""
    timed = _without_counters(table[[*KEYS, "duration_us"]].assign(busy_us=busy))
    grouped = timed.groupby(list(KEYS), observed=True, sort=False, dropna=False)
    sums = grouped.agg(
        launches=("duration_us", "size"), device_us=("duration_us", "sum"), busy_us=("busy_us", "sum")
    )
    found = [_entry(row) for row in sums.reset_index().to_dict("records")]
    return tuple(sorted(found, key=lambda entry: (-entry.device_us, entry.key)))


def _without_counters(launches: pandas.DataFrame) -> pandas.DataFrame:
    """Launches without scalars that tell nearly all of them apart: sequence numbers, seeds, lengths."""
    if launches["scalars"].nunique() <= MOST_SCALARS:
        return launches
    others = [name for name in KEYS if name != "scalars"]
    group = launches.groupby(others, observed=True, sort=False, dropna=False).ngroup()
    different = launches["scalars"].groupby(group, observed=True).transform("nunique")
    scalars = launches["scalars"].astype(object)
    return launches.assign(scalars=scalars.where(different <= MOST_SCALARS, ""))


def _entry(row: dict[Any, Any]) -> Entry:
    lists = {name: tuple(json.loads(row[name])) if row[name] else () for name in ("stack", "annotations")}
    return Entry(**{**row, **lists})


def _device_time(number: int, starts: Floats, durations: Floats, streams: int) -> DeviceTime:
    """Span, busy time and pauses of one device; `starts` ascend from 0."""
    reached = np.maximum.accumulate(starts + durations)  # the end of all that has begun
    pauses = np.maximum(0.0, starts[1:] - reached[:-1])
    span = float(reached[-1])
    return DeviceTime(
        device=number,
        span_us=span,
        busy_us=max(0.0, span - float(pauses.sum())),
        streams=streams,
        gaps=_magnitudes(pauses[pauses >= 1.0]),
    )


def _magnitudes(pauses: Floats) -> tuple[Gaps, ...]:
    """Pauses of at least a microsecond, by powers of ten."""
    if not len(pauses):
        return ()
    powers = 10.0 ** np.arange(0, 20)
    kinds = np.searchsorted(powers, pauses, side="right") - 1
    counts = np.bincount(kinds, minlength=1)
    totals = np.bincount(kinds, weights=pauses, minlength=1)
    return tuple(
        Gaps(least_us=float(powers[kind]), count=int(counts[kind]), total_us=float(totals[kind]))
        for kind in np.flatnonzero(counts).tolist()
    )
