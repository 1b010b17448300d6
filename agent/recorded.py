"""Recorded landscapes: all configurations of a kernel's grid on some cases, timed once and searched often.

A search needs a device for minutes, and to compare two searches takes dozens of runs. So a landscape is
measured once (`benchmarks/landscape.py`) and replayed: `RecordedLab` is a `Lab` whose judgements, times and
noise are the recorded ones and whose seconds are those that the same requests took on the device, on a clock
of its own.

What a replay keeps: which configurations are wrong, how fast each one is, the noise within its rounds, what
compiling it costs. What it does not: that a configuration timed in another process, or an hour later, may
differ by more than its rounds do. The truth of a landscape is the median of the recorded rounds.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import statistics
import zlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from agent import dispatch
from agent.buckets import Grid, point
from agent.lab import Comparison, Config, Level, ReferenceKernel, TimingFault, Tunables
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.records import Bound, Case, Dsl, Judgement, Latency, Provenance, Record, Status, Verdict
from atrex.score import weighted_mean
from atrex.statistics import paired_ratio

GATE = "recorded"  # the one gate of a replay
Seconds = Annotated[float, Field(ge=0)]
Microseconds = Annotated[float, Field(gt=0)]


class Cell(Record):
    """One configuration on one case."""

    seconds: Seconds
    """Of the first calls, what was compiled for them included."""
    status: Status = Status.PASS
    """Whether the output is right; ERROR: the harness could not say."""
    reason: str = ""
    """Why there are no rounds: what is wrong with the output, or how the timing of a right one failed."""
    rounds_us: tuple[Microseconds, ...] = ()
    """One median a round."""

    @model_validator(mode="after")
    def _rounds_or_reason(self) -> Self:
        if bool(self.rounds_us) == bool(self.reason) or (self.rounds_us and self.status is not Status.PASS):
            raise ValueError("a cell has either rounds or a reason why it has none")
        return self

    @property
    def median_us(self) -> float:
        """What counts as the true time. Raises statistics.StatisticsError without rounds."""
        return statistics.median(self.rounds_us)


class Point(Record):
    """One configuration on all cases, by case id."""

    config: Config
    load_seconds: Seconds
    """Of starting a worker and importing the kernel."""
    cells: dict[str, Cell]


class Pace(Record):
    """What the instrument took for one paired comparison of two candidates on one case."""

    seconds: Seconds
    pairs: Annotated[int, Field(ge=1)]


class Landscape(Record):
    """A reference kernel over a complete grid of its tunables, on some production cases of one operator."""

    schema_version: Literal[1] = 1
    operator: str
    dsl: Dsl
    kernel: str
    source: str
    """The kernel's file with one configuration everywhere: where a search starts."""
    tunables: Tunables
    """The recorded values; every combination of them is recorded."""
    buckets: dict[str, tuple[int, ...]]
    cases: Annotated[tuple[Case, ...], Field(min_length=1)]
    bounds: dict[str, Bound]
    method: Literal["graph", "events", "wall"]
    paces: dict[str, Pace]
    screen_seconds: Seconds
    """Of a screening of the start by all gates, cold."""
    points: tuple[Point, ...]
    provenance: Provenance
    date: str
    command: str
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> Self:
        names = [case.id for case in self.cases]
        if len(set(names)) < len(names):
            raise ValueError("a case appears twice")
        per_case: list[tuple[str, Iterable[str]]] = [("bounds", self.bounds), ("paces", self.paces)]
        per_case += [(f"points.{number}.cells", each.cells) for number, each in enumerate(self.points)]
        for where, held in per_case:
            if set(held) != set(names):
                raise ValueError(f"{where}: must hold exactly the cases {', '.join(names)}")
        start = self.start_config
        grid = {_key(config) for config in combinations(self.tunables, start)}
        found = [_key(each.config) for each in self.points]
        if set(found) != grid or len(found) != len(grid) or _key(start) not in grid:
            raise ValueError(f"points: must be the {len(grid)} combinations of the tunables, each once")
        if wrong := [i for i, cell in self.cells(self.source).items() if not cell.rounds_us]:
            raise ValueError(f"points: the start itself has no times for case {wrong[0]}")
        return self

    @property
    def start_config(self) -> Config:
        """The one configuration of the source. Raises UsageError for a malformed table."""
        return dispatch.read(self.source, self.kernel)[-1].config

    @property
    def start(self) -> Candidate:
        """What a search starts from."""
        return self.reference.candidate(self.operator)

    @property
    def reference(self) -> ReferenceKernel:
        """The kernel as a search retrieves it: nothing may be varied but what is recorded."""
        return ReferenceKernel(
            name=self.kernel, dsl=self.dsl, source=self.source, tunables=dict(self.tunables)
        )

    @cached_property
    def grid(self) -> Grid:
        """The buckets."""
        return Grid(self.buckets)

    @cached_property
    def _by_config(self) -> dict[str, Point]:
        return {_key(each.config): each for each in self.points}

    def at(self, config: Config) -> Point:
        """What is recorded of a configuration. Raises UsageError if nothing is."""
        found = self._by_config.get(_key(config))
        if found is None:
            raise UsageError(f"{self.kernel}: no recorded point has the configuration {_key(config)}")
        return found

    def points_of(self, source: str) -> dict[str, Point]:
        """The point that a table of this kernel uses in each case. Raises UsageError for an unknown one."""
        table = dispatch.read(source, self.kernel)
        dims = self.grid.refine(table).cuts
        return {case.id: self.at(dispatch.lookup(table, point(case, dims))) for case in self.cases}

    def cells(self, source: str) -> dict[str, Cell]:
        """The cell that a table of this kernel has in each case. Raises UsageError as `points_of`."""
        return {case: each.cells[case] for case, each in self.points_of(source).items()}

    @property
    def unusable(self) -> float:
        """Share of the cells that have no times."""
        cells = [cell for each in self.points for cell in each.cells.values()]
        return sum(not cell.rounds_us for cell in cells) / len(cells)

    @property
    def summary(self) -> str:
        """One line for people."""
        grid = " x ".join(f"{name} {len(values)}" for name, values in self.tunables.items())
        size = f"{len(self.points)} configurations ({grid}), {len(self.cases)} cases"
        return "; ".join((f"{size}, {self.unusable:.0%} unusable", *self.notes))

    def efficiency(self, source: str) -> float:
        """S of a table over the recorded cases, as `atrex.score` defines it, by the recorded medians."""
        cells = self.cells(source)
        values = [self.bounds[case.id].sol_us / cells[case.id].median_us for case in self.cases]
        return weighted_mean(values, [case.weight for case in self.cases])

    def speedup(self, source: str) -> float:
        """Geometric mean over the cases of the start's median over a table's."""
        before, after = self.cells(self.source), self.cells(source)
        return statistics.geometric_mean(before[case].median_us / after[case].median_us for case in before)

    @cached_property
    def best_efficiency(self) -> float:
        """The largest S of any table: every bucket with the best configuration that is right all over it."""
        weight = {case.id: case.weight for case in self.cases}
        values = dict[str, float]()
        for cases in self.grid.group(self.cases).values():
            usable = [p for p in self.points if all(p.cells[case.id].rounds_us for case in cases)]
            reached = [
                {case.id: self.bounds[case.id].sol_us / each.cells[case.id].median_us for case in cases}
                for each in usable
            ]
            weights = [weight[case.id] for case in cases]
            best = max(reached, key=lambda each: weighted_mean(list(each.values()), weights))
            values.update(best)
        return weighted_mean(list(values.values()), [weight[case] for case in values])


def _key(config: Config) -> str:
    return json.dumps(config, sort_keys=True)


def save_landscape(landscape: Landscape, path: Path) -> None:
    """Write compressed JSON; the same landscape gives the same bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = landscape.model_dump_json(exclude_defaults=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def load_landscape(path: Path) -> Landscape:
    """Read a file of `save_landscape`. Raises UsageError: file, field and what is wrong, in one line."""
    remedy = "collect it anew with benchmarks/landscape.py"
    try:
        return Landscape.model_validate_json(gzip.decompress(path.read_bytes()))
    except FileNotFoundError:
        raise UsageError(f"{path}: there is no such file; {remedy}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: is no readable gzip file ({error}); {remedy}") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "landscape"
        raise UsageError(f"{path}: {field}: {first['msg']}; {remedy}") from None


def growing_grids(tunables: Tunables, start: Config, most: int) -> list[Tunables]:
    """Grids from the start alone to at most `most` combinations, each with one value more than the last.

    Every tunable gets a second value before any gets a third; the next value is the one farthest from those
    taken. So whenever a recording of `planned` ends, it holds a complete grid.
    """
    taken = {name: [start[name]] for name in tunables}
    grids = [_ordered(tunables, taken)]
    while True:
        size = math.prod(map(len, taken.values()))
        open_ = [name for name, values in taken.items() if len(values) < len(tunables[name])]
        fitting = [name for name in open_ if size // len(taken[name]) * (len(taken[name]) + 1) <= most]
        if not fitting:
            return grids
        name = min(fitting, key=lambda each: len(taken[each]))
        places = [tunables[name].index(value) for value in taken[name]]
        away = [min(abs(place - other) for other in places) for place in range(len(tunables[name]))]
        taken[name].append(tunables[name][away.index(max(away))])
        grids.append(_ordered(tunables, taken))


def _ordered(tunables: Tunables, taken: Mapping[str, Sequence[object]]) -> Tunables:
    return {name: tuple(v for v in values if v in taken[name]) for name, values in tunables.items()}


def combinations(grid: Tunables, start: Config) -> list[Config]:
    """Every configuration of a grid."""
    return [{**start, **dict(zip(grid, c, strict=True))} for c in itertools.product(*grid.values())]


def planned(grids: Sequence[Tunables], start: Config) -> list[Config]:
    """The configurations of the last grid, those of earlier grids first."""
    found: list[Config] = []
    for grid in grids:
        found += [config for config in combinations(grid, start) if config not in found]
    return found


class RecordedLab:
    """Implements `agent.lab.Lab` over a landscape; `now` is its clock, in seconds.

    Noise: the rounds of a comparison are drawn, with replacement, from those recorded, so that one seed
    gives one sequence of measurements. The two sides are drawn apart: a disturbance that both would share,
    and that cancels in a real pair, does not cancel here, so intervals are rather too wide. A full judgement
    takes `full_factor` times a screening and finds the same: what only the full gates reject is not recorded.
    Verdicts have no witness that names a case: those of the gates name a shape.
    """

    def __init__(self, landscape: Landscape, seed: int, full_factor: float) -> None:
        self.landscape = landscape
        self.seed = seed
        self.full_factor = full_factor
        self.now = 0.0
        self._measurements = 0
        self._built: dict[str, set[str]] = {}  # cases by the candidate that was compiled for them
        self._cold = self._first_calls(landscape.source, landscape.cells(landscape.source))

    def clock(self) -> float:
        """Seconds that the recorded device would have been busy."""
        return self.now

    def judging_seconds(self, level: Level) -> float:
        """What the gates take for a candidate that was never compiled."""
        return self.landscape.screen_seconds * (self.full_factor if level == "full" else 1.0)

    def judge(self, candidate: Candidate, *, level: Level, cases: Sequence[Case]) -> Judgement:
        """The recorded verdict on these cases; takes what the gates take, and compiling the first time."""
        self.now += max(0.0, self.judging_seconds(level) - self._cold)
        cells = self.landscape.cells(candidate.source)
        self._build(candidate, cells)
        bad = next((case.id for case in cases if cells[case.id].status is not Status.PASS), None)
        status, why = (cells[bad].status, f"{bad}: {cells[bad].reason}") if bad else (Status.PASS, "")
        verdict = Verdict(gate=GATE, status=status, tolerance_free=False, reason=why)
        return Judgement(
            candidate=candidate.id,
            operator=candidate.operator,
            device=self.landscape.provenance.device,
            level=level,
            seed=self.seed,
            required=(GATE,),
            verdicts=(verdict,),
        )

    def compare(
        self, candidate: Candidate, incumbent: Candidate, cases: Sequence[Case]
    ) -> dict[str, Comparison]:
        """Paired rounds of both, drawn afresh, and what compiling takes. Raises TimingFault."""
        self._build(candidate, [case.id for case in cases])
        self.now += sum(self.landscape.paces[case.id].seconds for case in cases)
        rng = self._rng()
        ours, theirs = (self.landscape.cells(each.source) for each in (candidate, incumbent))
        found = dict[str, Comparison]()
        for case in cases:
            mine, other = (self._draw(cells[case.id], case, rng) for cells in (ours, theirs))
            found[case.id] = Comparison(
                ratio=paired_ratio(mine, other),
                candidate_us=statistics.median(mine),
                incumbent_us=statistics.median(other),
            )
        return found

    def measure(self, candidate: Candidate, cases: Sequence[Case]) -> dict[str, Latency]:
        """Latency of each case, in half the time of a comparison. Raises TimingFault as `compare`."""
        self._build(candidate, [case.id for case in cases])
        self.now += sum(self.landscape.paces[case.id].seconds for case in cases) / 2
        rng, cells = self._rng(), self.landscape.cells(candidate.source)
        return {case.id: self._latency(self._draw(cells[case.id], case, rng)) for case in cases}

    def bound(self, case: Case) -> Bound:
        """The recorded roofline."""
        return self.landscape.bounds[case.id]

    def _latency(self, rounds: Sequence[float]) -> Latency:
        p10, median, p90 = (float(value) for value in np.quantile(rounds, [0.1, 0.5, 0.9]))
        return Latency(median_us=median, p10_us=p10, p90_us=p90, n=len(rounds), method=self.landscape.method)

    def _draw(self, cell: Cell, case: Case, rng: random.Random) -> list[float]:
        if not cell.rounds_us:
            raise TimingFault(f"{case.id}: {cell.reason}")
        return rng.choices(cell.rounds_us, k=self.landscape.paces[case.id].pairs)

    def _rng(self) -> random.Random:
        self._measurements += 1
        return random.Random(f"{self.seed}/{self._measurements}")

    def _build(self, candidate: Candidate, cases: Iterable[str]) -> None:
        """Take the time of loading and of first calls, where they are that: each file is compiled anew."""
        known = self._built.get(candidate.id)
        fresh = [case for case in cases if known is None or case not in known]
        if fresh:
            self.now += self._first_calls(candidate.source, fresh, load=known is None)
            self._built.setdefault(candidate.id, set()).update(fresh)

    def _first_calls(self, source: str, cases: Iterable[str], *, load: bool = True) -> float:
        """Seconds to load a table of this kernel, and to call it on these cases for the first time."""
        points = self.landscape.points_of(source)
        calls = sum(points[case].cells[case].seconds for case in cases)
        return calls + (max(each.load_seconds for each in points.values()) if load else 0.0)
