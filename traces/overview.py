"""What profiles hold, before anything is weighed: device time by target and phase, and what no rule knows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from math import fsum
from typing import Literal

from atrex.records import Record
from traces.calls import pieces
from traces.placed import UNPLACED, Placed, PlacedPhase
from traces.profile import Entry

Suggest = Callable[[Entry], str]


class TargetTime(Record):
    """Device time of one target in one phase, over all profiles; microseconds."""

    target: str
    ours: bool
    phase: PlacedPhase
    launches: int
    calls: int  # of the operator; 0 outside our operators
    device_us: float  # durations
    busy_us: float  # overlap counted once
    share: float  # of the busy time
    cases: int  # distinct shapes
    without_case_us: float  # busy time whose shape is unknown


class UnplacedTime(Record):
    """A kernel that no rule places."""

    kernel: str
    operator: str  # innermost operation that launched it; empty if the profile does not say
    launches: int
    busy_us: float
    share: float  # of the busy time, or of the fleet's
    rule: str  # which would place it


class Overview(Record):
    """All device time; `targets` add up to it."""

    schema_version: Literal[1] = 1
    profiles: int
    device_us: float
    busy_us: float
    targets: tuple[TargetTime, ...]  # the longest first
    unplaced: tuple[UnplacedTime, ...]

    @property
    def covered(self) -> float:
        """Share of our operators."""
        return fsum(row.share for row in self.targets if row.ours)


def overview(placed: Iterable[Placed], suggest: Suggest) -> Overview:
    """Sums over all profiles, each microsecond counting the same."""
    entries = tuple(placed)
    busy = fsum(one.entry.busy_us for one in entries)
    groups = defaultdict[tuple[str, PlacedPhase], list[Placed]](list)
    for one in entries:
        groups[one.target, one.phase].append(one)
    without = defaultdict[tuple[str, PlacedPhase], list[float]](list)
    for piece in pieces(entries):
        if not piece.input:
            without[piece.operator, piece.phase].append(piece.busy_us)
    rows = [_target(own, busy, fsum(without.get(key, ()))) for key, own in groups.items()]
    share = 1 / busy if busy else 0.0
    return Overview(
        profiles=len({one.digest for one in entries}),
        device_us=fsum(one.entry.device_us for one in entries),
        busy_us=busy,
        targets=tuple(sorted(rows, key=lambda row: (-row.busy_us, row.target, row.phase))),
        unplaced=unplaced(entries, {one.digest: share for one in entries}, suggest),
    )


def _target(entries: list[Placed], busy: float, without: float) -> TargetTime:
    own = fsum(one.entry.busy_us for one in entries)
    first = entries[0]
    return TargetTime(
        target=first.target,
        ours=first.ours,
        phase=first.phase,
        launches=sum(one.entry.launches for one in entries),
        calls=sum(one.calls for one in entries),
        device_us=fsum(one.entry.device_us for one in entries),
        busy_us=own,
        share=own / busy if busy else 0.0,
        cases=len({repr((one.init, one.input)) for one in entries if one.has_case}),
        without_case_us=without,
    )


def unplaced(
    placed: Iterable[Placed], scale: Mapping[str, float], suggest: Suggest
) -> tuple[UnplacedTime, ...]:
    """What no rule knows, by kernel and operation, the longest first; `scale` weighs a profile's time."""
    groups = defaultdict[tuple[str, str], list[Placed]](list)
    for one in placed:
        if one.target == UNPLACED and one.digest in scale:
            groups[one.entry.kernel, one.entry.operator].append(one)
    rows = [
        UnplacedTime(
            kernel=kernel,
            operator=operator,
            launches=sum(one.entry.launches for one in own),
            busy_us=fsum(one.entry.busy_us for one in own),
            share=fsum(one.entry.busy_us * scale[one.digest] for one in own),
            rule=suggest(own[0].entry),
        )
        for (kernel, operator), own in groups.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.share, row.kernel, row.operator)))
