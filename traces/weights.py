"""How much of a fleet's device time each operator takes, by phase, and how surely that is known.

    fleet = assign(profiles, specs)
    weights = weigh(fleet, placed)

    weight(target, phase) = Σ over applications  card-hours / all card-hours × share of busy time

The share of an application is the busy time of the target over that of everything, both added up over its
profiles: its files, ranks and devices are averaged by their busy time. Where no card-hours are given, every
file has the same hour, and shares of files are averaged as they are. Targets include the classes outside our
operators and `unplaced`, so that the weights of all rows are 1, and those of our operators their coverage.

Intervals are of the bootstrap over profiles. Within each application n - 1 of its n profiles are drawn with
replacement, independently of the others, as J. N. K. Rao and C. F. J. Wu (JASA 83, 1988, 231-241) do for
strata with few units: drawing all n would make a weight that rests on two profiles look surer than it is.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import fsum
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from atrex.records import Record
from traces.applications import Application, Fleet, busy_us
from traces.placed import Placed, PlacedPhase

CONFIDENCE = 0.95
RESAMPLES = 2000

Array = NDArray[np.float64]
Key = tuple[str, PlacedPhase]
Share = Annotated[float, Field(ge=0)]


class Weight(Record):
    """A share of the fleet's busy time, in [0, 1]."""

    target: str
    ours: bool
    phase: PlacedPhase | None = None  # None: all phases together
    weight: Share
    of_ours: Share | None = None  # the same over the coverage, if it is one of our operators
    low: Share | None = None  # of the 95 % interval; None where there is no telling
    high: Share | None = None
    profiles: int  # in which it was seen
    thin: str = ""  # why the weight is not to be relied on; empty from three profiles on
    shares: dict[str, Share] = Field(default_factory=dict)  # of each application's busy time


class ApplicationRow(Record):
    """An application, and what of it was profiled."""

    name: str
    card_hours: float
    profiles: int
    busy_us: float


class Weights(Record):
    """All of a fleet's busy time; `rows` add up to 1, and so do `totals`."""

    schema_version: Literal[1] = 1
    card_hours: float
    stated: bool  # False: no card-hours were given, and every file counts the same hour
    applications: tuple[ApplicationRow, ...]
    rows: tuple[Weight, ...]  # by target and phase, the heaviest first
    totals: tuple[Weight, ...]  # by target
    coverage: Weight  # our operators together
    seed: int
    resamples: int

    def total(self, target: str) -> Weight:
        """A target's weight over all phases. Raises KeyError."""
        for row in self.totals:
            if row.target == target:
                return row
        raise KeyError(target)


@dataclass(frozen=True, slots=True)
class _Stratum:
    """One application as arrays: busy time by profile and key, and its fraction of the card-hours."""

    application: Application
    fraction: float
    time: Array  # [profiles, keys]
    shares: Array  # [keys], of the application's busy time


def scale(fleet: Fleet) -> dict[str, float]:
    """What a busy microsecond of each profile weighs, by its digest: weights are sums of busy_us × scale."""
    found = dict[str, float]()
    for one in fleet.applications:
        fraction = one.card_hours / fleet.card_hours
        for profile in one.profiles:
            whole = busy_us(profile) * len(one.profiles) if one.per_file else one.busy_us
            found[profile.digest] = fraction / whole
    return found


def weigh(fleet: Fleet, placed: Iterable[Placed], *, seed: int = 0, resamples: int = RESAMPLES) -> Weights:
    """Weights of everything that `placed` says of the fleet's profiles. The order of neither matters."""
    entries = tuple(placed)
    ours = {one.target: one.ours for one in entries}
    keys = sorted({(one.target, one.phase) for one in entries})
    strata = _strata(fleet, entries, keys)
    columns = defaultdict[str, list[int]](list)
    for column, (target, _) in enumerate(keys):
        columns[target].append(column)
    table = _Table(strata, _draws(strata, np.random.default_rng(seed), resamples))
    covered = table.row(
        "our operators", True, None, [i for i, (target, _) in enumerate(keys) if ours[target]]
    )
    rows = [table.row(target, ours[target], phase, [i]) for i, (target, phase) in enumerate(keys)]
    totals = [table.row(target, ours[target], None, chosen) for target, chosen in columns.items()]
    return Weights(
        card_hours=fleet.card_hours,
        stated=fleet.stated,
        applications=tuple(_application(one) for one in fleet.applications),
        rows=_ordered(rows, covered.weight),
        totals=_ordered(totals, covered.weight),
        coverage=covered,
        seed=seed,
        resamples=resamples,
    )


def _application(one: Application) -> ApplicationRow:
    return ApplicationRow(
        name=one.name, card_hours=one.card_hours, profiles=len(one.profiles), busy_us=one.busy_us
    )


def _ordered(rows: Iterable[Weight], coverage: float) -> tuple[Weight, ...]:
    shared = [
        row.model_copy(update={"of_ours": row.weight / coverage}) if row.ours and coverage else row
        for row in rows
    ]
    return tuple(sorted(shared, key=lambda row: (-row.weight, row.target, row.phase or "")))


def _strata(fleet: Fleet, placed: tuple[Placed, ...], keys: list[Key]) -> list[_Stratum]:
    times = defaultdict[tuple[str, Key], list[float]](list)
    for one in placed:
        times[one.digest, (one.target, one.phase)].append(one.entry.busy_us)
    found = list[_Stratum]()
    for application in fleet.applications:
        rows = [[fsum(times[each.digest, key]) for key in keys] for each in application.profiles]
        time = np.asarray(rows, dtype=np.float64)
        if application.per_file:
            time /= np.asarray([[fsum(row)] for row in rows])
        shares = np.asarray([fsum(column) for column in time.T]) / fsum(time.ravel())
        found.append(_Stratum(application, application.card_hours / fleet.card_hours, time, shares))
    return found


def _draws(strata: list[_Stratum], random: np.random.Generator, resamples: int) -> Array:
    """Weights of each resample: [resamples, keys]."""
    total = np.zeros((resamples, strata[0].time.shape[1]))
    for one in strata:
        n = len(one.time)
        counts = random.multinomial(n - 1, [1 / n] * n, size=resamples) if n > 1 else np.ones((resamples, 1))
        time = counts @ one.time
        total += one.fraction * time / time.sum(axis=1, keepdims=True)
    return total


@dataclass(frozen=True, slots=True)
class _Table:
    """All applications, and the weights of the resamples: [resamples, keys]."""

    strata: list[_Stratum]
    draws: Array

    def row(self, target: str, ours: bool, phase: PlacedPhase | None, columns: list[int]) -> Weight:
        """The weight of these keys together."""
        seen = [int((one.time[:, columns].sum(axis=1) > 0).sum()) for one in self.strata]
        lonely = [
            one.application.name for one, n in zip(self.strata, seen, strict=True) if n and len(one.time) == 1
        ]
        certain = sum(seen) > 1 and not lonely
        low, high = _interval(self.draws[:, columns].sum(axis=1)) if certain else (None, None)
        return Weight(
            target=target,
            ours=ours,
            phase=phase,
            weight=fsum(one.fraction * one.shares[column] for one in self.strata for column in columns),
            low=low,
            high=high,
            profiles=sum(seen),
            thin=_thin(sum(seen), lonely),
            shares={one.application.name: fsum(one.shares[columns]) for one in self.strata},
        )


def _interval(values: Array) -> tuple[float, float]:
    edge = (1 - CONFIDENCE) / 2
    low, high = np.quantile(values, [edge, 1 - edge])
    return float(low), float(high)


def _thin(profiles: int, lonely: list[str]) -> str:
    """Why a weight is weak: too few profiles, or an application whose spread one profile cannot show."""
    if profiles <= 1:
        return "one profile" if profiles else "no profile"
    if lonely:
        return f"{lonely[0]}: one profile"
    return "two profiles" if profiles == 2 else ""
