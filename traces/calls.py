"""Calls of an operator made of several kernels: which time belongs to which case.

Rules know the case of the first kernel of a call, and of the further ones only whose they are: each has
`calls` = 0 and no case. Their time belongs to the cases of the same operator in the same step: of one
profile, device, phase and annotations, else of one profile, device and phase. Where these are several cases,
it is divided among them in proportion to the time of their first kernels, and marked as `spread`: the
profile does not say more. Without any first kernel it keeps its reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from atrex.records import InitValue
from traces.placed import Placed, PlacedPhase
from traces.workload import Value

Step = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """Time of one of our operators in one profile, at one case or without one; microseconds."""

    digest: str
    operator: str
    phase: PlacedPhase
    init: Mapping[str, InitValue]
    input: Mapping[str, Value]
    why: str
    busy_us: float
    device_us: float
    calls: int
    spread: bool = False


def pieces(placed: Iterable[Placed]) -> Iterator[Piece]:
    """The time of our operators; further kernels at the cases that they belong to. No time is lost."""
    ours = [one for one in placed if one.ours]
    narrow, wide = defaultdict[Step, list[Placed]](list), defaultdict[Step, list[Placed]](list)
    for one in ours:
        if not _further(one):
            narrow[_step(one)].append(one)
            wide[_step(one)[:-1]].append(one)
            yield _piece(one, one, 1.0, one.calls)
    for one in ours:
        if _further(one):
            yield from _shared(one, narrow.get(_step(one)) or wide.get(_step(one)[:-1]) or ())


def _further(one: Placed) -> bool:
    return one.calls == 0 and not one.has_case


def _step(one: Placed) -> Step:
    return (one.digest, one.target, one.phase, one.entry.device, one.entry.annotations)


def _shared(one: Placed, firsts: Sequence[Placed]) -> Iterator[Piece]:
    """A further kernel's time at the cases of the first kernels, in proportion to theirs."""
    if not firsts:
        yield _piece(one, one, 1.0, 0)
        return
    whole = fsum(first.entry.device_us for first in firsts)
    several = any(_case(first) != _case(firsts[0]) for first in firsts)
    for first in firsts:
        share = first.entry.device_us / whole if whole else 1 / len(firsts)
        yield _piece(first, one, share, 0, several)


def _case(one: Placed) -> tuple[object, ...]:
    return (one.init, one.input, one.why)


def _piece(case: Placed, time: Placed, share: float, calls: int, spread: bool = False) -> Piece:
    return Piece(
        digest=time.digest,
        operator=time.target,
        phase=time.phase,
        init=case.init,
        input=case.input,
        why=case.why,
        busy_us=time.entry.busy_us * share,
        device_us=time.entry.device_us * share,
        calls=calls,
        spread=spread,
    )
