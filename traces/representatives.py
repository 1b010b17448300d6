"""The shapes at which operators were seen, and the few of them that stand for nearly all of the time.

    cases, without = observe(placed, scale(fleet), fleet)
    for reduction in reduce(cases, keep=0.95): ...

A representative is an observed case: none is made up. The rule, for each operator and phase:

1. Cases that differ only in how much there is of it (tokens, rows, sequences, context: `COUNTS`; the first
   extent of `shape`; the number and the sum of `seq_lens`) form a group if each of these counts lies between
   the same two powers of two: in [2^k, 2^(k+1)). Members of a group are less than a factor of two apart.
2. A group's representative is its medoid: the member with the least mean distance to all of them, weighted
   by their time; the distance is the sum of the counts' |log ratios|.
3. Groups are kept from the heaviest on until they hold the share `keep` of the time with a known case.
   What is dropped is reported, and the weights of the kept are scaled up to the whole.

Time whose case is unknown stays in the operator's weight and is listed with the reason.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from math import fsum
from typing import Any

import numpy as np

from atrex.errors import UsageError
from atrex.records import InitValue, Phase, Record
from traces.applications import Fleet
from traces.calls import Piece, pieces
from traces.placed import Placed
from traces.workload import DECODE_TOKENS, Value, WorkloadCase, load_workload

COUNTS = (
    "token_count", "num_tokens", "total_tokens", "rows", "m", "num_seqs", "batch_size", "ctx_len", "seq_len",
    "state_count",
)  # fmt: skip
NO_PHASE = "its phase is unknown, and no input counts its tokens"


@dataclass(frozen=True, slots=True)
class Timing:
    """What one kind of hardware took for a case."""

    weight: float  # of the fleet's busy time
    device_us: float
    calls: int

    @property
    def mean_us(self) -> float | None:
        """Device time of a call; None if no call was counted or none took time."""
        return self.device_us / self.calls if self.calls and self.device_us else None


@dataclass(frozen=True, slots=True)
class Observed:
    """A case as it was seen in the traces."""

    operator: str
    phase: Phase
    init: Mapping[str, InitValue]
    input: Mapping[str, Value]
    timings: Mapping[str, Timing]  # by hardware; "" where the profile does not name it
    applications: tuple[str, ...]
    by_count: float = 0.0  # weight of what only the number of tokens told the phase of
    spread: float = 0.0  # weight of further kernels that may belong to other cases

    @property
    def weight(self) -> float:
        """Share of the fleet's busy time."""
        return fsum(timing.weight for timing in self.timings.values())

    @property
    def calls(self) -> int:
        """Calls seen."""
        return sum(timing.calls for timing in self.timings.values())

    @property
    def mean_us(self) -> dict[str, float]:
        """Mean device time of a call, by hardware; "" where the profile names none."""
        means = {hardware: timing.mean_us for hardware, timing in self.timings.items()}
        return {hardware: mean for hardware, mean in means.items() if mean is not None}

    @property
    def identity(self) -> str:
        """Its arguments as JSON, names in order."""
        return identity(self.init, self.input)


@dataclass(frozen=True, slots=True)
class Caseless:
    """Time of an operator whose shape is unknown."""

    operator: str
    why: str
    weight: float


@dataclass(frozen=True, slots=True)
class Representative:
    """An observed case that stands for its group."""

    case: Observed
    members: int
    calls: int  # of the group
    weight: float  # of the group
    scaled: float  # the same with its share of what was dropped: adds up to the reduction's weight


@dataclass(frozen=True, slots=True)
class Reduction:
    """The representatives of one operator in one phase, the heaviest first."""

    operator: str
    phase: Phase
    representatives: tuple[Representative, ...]
    weight: float  # of all its cases
    cases: int  # observed

    @property
    def kept(self) -> float:
        """Share of the weight that the representatives' groups hold."""
        return fsum(one.weight for one in self.representatives) / self.weight if self.weight else 0.0


class RepresentativeRow(Record):
    """A representative as `--json` prints it."""

    init: dict[str, InitValue]
    input: dict[str, Value]
    members: int
    calls: int
    weight: float  # of the fleet's busy time, its group's
    scaled: float
    mean_us: dict[str, float]  # of a call, by hardware


class ReductionRow(Record):
    """A reduction as `--json` prints it."""

    operator: str
    phase: Phase
    weight: float
    cases: int
    kept: float
    representatives: tuple[RepresentativeRow, ...]


def as_record(one: Reduction) -> ReductionRow:
    """A reduction for a process that reads JSON."""
    return ReductionRow(
        operator=one.operator,
        phase=one.phase,
        weight=one.weight,
        cases=one.cases,
        kept=one.kept,
        representatives=tuple(_as_record(each) for each in one.representatives),
    )


def _as_record(one: Representative) -> RepresentativeRow:
    return RepresentativeRow(
        init=dict(one.case.init),
        input=dict(one.case.input),
        members=one.members,
        calls=one.calls,
        weight=one.weight,
        scaled=one.scaled,
        mean_us=one.case.mean_us,
    )


def identity(init: Mapping[str, Any], input: Mapping[str, Any]) -> str:
    """The arguments of a case as JSON, names in order."""
    return json.dumps([init, input], sort_keys=True)


def observe(
    placed: Iterable[Placed], scale: Mapping[str, float], fleet: Fleet
) -> tuple[tuple[Observed, ...], tuple[Caseless, ...]]:
    """Cases of our operators with their weights, and the time without one. The order does not matter.

    Further kernels of a call belong to the case of its first (`traces.calls`). A phase that the trace does
    not tell is that of the operator where the published workload knows it in one phase only; else the
    workload format's rule decides by the number of tokens, and `by_count` says so.
    """
    hardware = {profile.digest: profile.hardware for profile in fleet.profiles}
    owner = {profile.digest: one.name for one in fleet.applications for profile in one.profiles}
    groups = defaultdict[tuple[str, Phase, str], list[Piece]](list)
    rest = defaultdict[tuple[str, str], list[float]](list)
    for one in pieces(each for each in placed if each.digest in scale):
        phase = _phase(one) if one.input else None
        if phase:
            groups[one.operator, phase, identity(one.init, one.input)].append(one)
        else:
            rest[one.operator, one.why or NO_PHASE].append(one.busy_us * scale[one.digest])
    cases = [_observed(key[1], groups[key], scale, hardware, owner) for key in sorted(groups)]
    without = [Caseless(operator, why, fsum(parts)) for (operator, why), parts in rest.items()]
    return tuple(cases), tuple(sorted(without, key=lambda one: (-one.weight, one.operator, one.why)))


def _phase(one: Piece) -> Phase | None:
    if one.phase != "unknown":
        return one.phase
    known = _published_phases().get(one.operator, ())
    if len(known) == 1:
        return known[0]
    rows = WorkloadCase(shape=0, init=dict(one.init), input=dict(one.input)).rows
    if rows is None:
        return None
    return "decode" if rows <= DECODE_TOKENS else "prefill"


@cache
def _published_phases() -> Mapping[str, tuple[Phase, ...]]:
    return {name: entry.phases for name, entry in load_workload().operators.items()}


def _observed(
    phase: Phase,
    parts: Sequence[Piece],
    scale: Mapping[str, float],
    hardware: Mapping[str, str],
    owner: Mapping[str, str],
) -> Observed:
    timings = dict[str, Timing]()
    for name in sorted({hardware[one.digest] for one in parts}):
        own = [one for one in parts if hardware[one.digest] == name]
        timings[name] = Timing(
            weight=_weight(own, scale),
            device_us=fsum(one.device_us for one in own),
            calls=sum(one.calls for one in own),
        )
    first = min(parts, key=lambda one: repr((one.init, one.input)))  # one spelling, whatever the order
    return Observed(
        operator=first.operator,
        phase=phase,
        init=first.init,
        input=first.input,
        timings=timings,
        applications=tuple(sorted({owner[one.digest] for one in parts})),
        by_count=_weight([one for one in parts if one.phase == "unknown"], scale),
        spread=_weight([one for one in parts if one.spread], scale),
    )


def _weight(parts: Iterable[Piece], scale: Mapping[str, float]) -> float:
    return fsum(one.busy_us * scale[one.digest] for one in parts)


def reduce(cases: Iterable[Observed], keep: float = 0.95) -> tuple[Reduction, ...]:
    """Representatives of each operator and phase that hold `keep` of its time. Raises UsageError."""
    if not 0 < keep <= 1:
        raise UsageError(f"--keep {keep}: give a share above 0 and up to 1, such as 0.95")
    ordered = sorted(cases, key=lambda case: (case.operator, case.phase, case.identity))
    parts = groupby(ordered, key=lambda case: (case.operator, case.phase))
    return tuple(_reduce(operator, phase, tuple(own), keep) for (operator, phase), own in parts)


def _reduce(operator: str, phase: Phase, cases: tuple[Observed, ...], keep: float) -> Reduction:
    groups = defaultdict[str, list[Observed]](list)
    for case in cases:
        groups[_group(case)].append(case)
    whole = fsum(case.weight for case in cases)
    found = [_Group(tuple(members), fsum(one.weight for one in members)) for members in groups.values()]
    found.sort(key=lambda group: (-group.weight, group.members[0].identity))
    kept = list[_Group]()
    for group in found:
        if kept and fsum(one.weight for one in kept) >= keep * whole:
            break
        kept.append(group)
    held = fsum(group.weight for group in kept)
    representatives = tuple(_representative(group, whole / held if held else 1.0) for group in kept)
    return Reduction(operator, phase, representatives, whole, len(cases))


@dataclass(frozen=True, slots=True)
class _Group:
    members: tuple[Observed, ...]
    weight: float


def _representative(group: _Group, factor: float) -> Representative:
    calls = sum(one.calls for one in group.members)
    return Representative(
        _medoid(group.members), len(group.members), calls, group.weight, group.weight * factor
    )


def _medoid(members: Sequence[Observed]) -> Observed:
    places = np.log(np.asarray([list(counts(one.input).values()) for one in members]).clip(min=0.5))
    weights = np.asarray([one.weight for one in members])
    costs = [float((np.abs(places - place).sum(axis=1) * weights).sum()) for place in places]
    return members[int(np.argmin(costs))]


def counts(input: Mapping[str, Value]) -> dict[str, int]:
    """The counts of a case that may differ within a group, by name."""
    found = dict[str, int]()
    for name, value in input.items():
        if name in COUNTS and isinstance(value, int) and not isinstance(value, bool):
            found[name] = value
        elif name == "shape" and isinstance(value, list) and value and isinstance(value[0], int):
            found[name] = value[0]
        elif name == "seq_lens" and isinstance(value, list):
            runs = [(each, 1) if isinstance(each, int) else (each[0], each[1]) for each in value]
            found["sequences"] = sum(repeat for _, repeat in runs)
            found["sum of seq_lens"] = sum(length * repeat for length, repeat in runs)
    return found


def _group(case: Observed) -> str:
    """What members of a group have in common, as JSON."""
    fixed = {name: _fixed(name, value) for name, value in case.input.items()}
    buckets = {name: count.bit_length() for name, count in counts(case.input).items()}
    return json.dumps([dict(case.init), fixed, buckets], sort_keys=True)


def _fixed(name: str, value: Value) -> Value:
    """The part of an input that members of a group share."""
    if name in counts({name: value}):
        return value[1:] if isinstance(value, list) else None
    return None if name == "seq_lens" and isinstance(value, list) else value
