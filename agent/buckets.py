"""Case buckets: boxes in the space of dimensions, each with a configuration of its own.

A grid cuts every dimension at inclusive upper bounds. Cases in one bucket share a configuration, and
buckets are independent: a change in one leaves the others' code path as it was.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from agent import dispatch
from agent.dispatch import Rule
from agent.lab import Config
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.records import Case

Index = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bucket:
    """A box: by dimension, the last value below it and its last value (None: unbounded)."""

    dims: tuple[str, ...]
    index: Index
    above: tuple[int, ...]
    upto: tuple[int | None, ...]

    @property
    def name(self) -> str:
        """Readable and unique in its grid, for instance `token_count 65-2048, hidden_size 2049+`."""
        spans = zip(self.dims, self.above, self.upto, strict=True)
        parts = (f"{dim} {low + 1}+" if up is None else f"{dim} {low + 1}-{up}" for dim, low, up in spans)
        return ", ".join(parts) or "all"

    @property
    def bounds(self) -> dict[str, int]:
        """Inclusive upper bounds, as a dispatch rule states them."""
        return {dim: up for dim, up in zip(self.dims, self.upto, strict=True) if up is not None}

    @property
    def corner(self) -> dict[str, int]:
        """Its largest point; where it is unbounded, the smallest value inside."""
        spans = zip(self.dims, self.above, self.upto, strict=True)
        return {dim: low + 1 if up is None else up for dim, low, up in spans}

    def holds(self, point: Mapping[str, int]) -> bool:
        """True iff `point`, which gives every dimension, lies inside."""
        spans = zip(self.dims, self.above, self.upto, strict=True)
        return all(low < point[dim] and (up is None or point[dim] <= up) for dim, low, up in spans)


@dataclass(frozen=True, slots=True)
class Grid:
    """Buckets by cut points: `{"token_count": (64, 2048)}` makes 0-64, 65-2048 and 2049 up."""

    cuts: Mapping[str, tuple[int, ...]]

    def __post_init__(self) -> None:
        for dim, cuts in self.cuts.items():
            if list(cuts) != sorted(set(cuts)):
                raise UsageError(f"buckets: {dim}: cut points must ascend, got {list(cuts)}")

    @property
    def buckets(self) -> tuple[Bucket, ...]:
        """All buckets in the order of dispatch: none comes after one that includes its bounds."""
        return tuple(map(self._bucket, product(*(range(len(cuts) + 1) for cuts in self.cuts.values()))))

    def bucket(self, case: Case) -> Bucket:
        """The bucket of a case. Raises UsageError if the case lacks a dimension of the grid."""
        here = point(case, self.cuts)
        return self._bucket(tuple(bisect_left(cuts, here[dim]) for dim, cuts in self.cuts.items()))

    def group(self, cases: Sequence[Case]) -> dict[Bucket, tuple[Case, ...]]:
        """The cases by bucket, in the order of dispatch; a bucket without cases is left out."""
        groups: dict[Bucket, list[Case]] = {}
        for case in cases:
            groups.setdefault(self.bucket(case), []).append(case)
        return {bucket: tuple(groups[bucket]) for bucket in sorted(groups, key=lambda b: b.index)}

    def refine(self, rules: Sequence[Rule]) -> Grid:
        """This grid with further cuts at every bound of `rules`, so that no cell straddles a rule."""
        cuts = {dim: set(points) for dim, points in self.cuts.items()}
        for rule in rules:
            for dim, limit in rule.bounds.items():
                cuts.setdefault(dim, set()).add(limit)
        return Grid({dim: tuple(sorted(points)) for dim, points in cuts.items()})

    def _bucket(self, index: Index) -> Bucket:
        edges = [(-1, *cuts, None) for cuts in self.cuts.values()]
        above = tuple(edge[i] for edge, i in zip(edges, index, strict=True))
        upto = tuple(edge[i + 1] for edge, i in zip(edges, index, strict=True))
        return Bucket(tuple(self.cuts), index, above, upto)  # type: ignore[arg-type]


def point(case: Case, dims: Mapping[str, object]) -> dict[str, int]:
    """The named dimensions of a case. Raises UsageError if it lacks one of them."""
    missing = [dim for dim in dims if type(case.input.get(dim)) is not int]
    if missing:
        raise UsageError(f"case {case.id} of {case.operator}: input.{missing[0]} must be an integer")
    return {dim: case.input[dim] for dim in dims}


def rules(grid: Grid, configs: Mapping[Bucket, Config]) -> tuple[Rule, ...]:
    """A table that gives each bucket its configuration, as short as merging neighbours makes it.

    A bucket without a configuration takes the nearest one's (steps on the grid; of two as near, the first
    in the order of dispatch). Raises ValueError without any configuration.
    """
    if not configs:
        raise ValueError("a dispatch table needs at least one configuration")
    table: list[tuple[Bucket, Rule]] = []
    for bucket in reversed(grid.buckets):
        config = configs[min(configs, key=lambda b: (_steps(b.index, bucket.index), b.index))]
        later = next((rule for _, rule in table if rule.holds(bucket.corner)), None)
        # A rule is left out when a later one says the same of the whole bucket. Later rules are final by
        # now, and one that holds at the bucket's corner holds all over it.
        if later is None or later.config != config:
            table.insert(0, (bucket, Rule(bucket.bounds, config)))
    return tuple(rule for _, rule in table)


def retable(table: Sequence[Rule], grid: Grid, moved: Mapping[Bucket, Config]) -> tuple[Rule, ...]:
    """`table` with new configurations in some buckets of `grid`, and unchanged everywhere else."""
    fine = grid.refine(table)
    configs = {cell: dispatch.lookup(table, cell.corner) for cell in fine.buckets}
    for bucket, config in moved.items():
        configs |= {cell: config for cell in configs if bucket.holds(cell.corner)}
    return rules(fine, configs)


def compose(base: Candidate, grid: Grid, moved: Mapping[Bucket, Config], note: str) -> Candidate:
    """The base's file with new configurations in some buckets. Raises UsageError as `dispatch.read`."""
    table = retable(dispatch.read(base.source), grid, moved)
    source = dispatch.write(base.source, table)
    return Candidate(base.operator, base.dsl, source, parent=base.id, note=note)


def configs_in(table: Sequence[Rule], grid: Grid, cases: Sequence[Case]) -> tuple[Config, ...]:
    """The distinct configurations that a table gives these cases, in the order of the cases."""
    dims = grid.refine(table).cuts
    found: list[Config] = []
    for case in cases:
        if (config := dispatch.lookup(table, point(case, dims))) not in found:
            found.append(config)
    return tuple(found)


def _steps(one: Index, other: Index) -> int:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))
