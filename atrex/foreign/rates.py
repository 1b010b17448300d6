"""Shares with their intervals, and what an audit's rows add up to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

from atrex.records import Judgement, Record, Status, Verdict

State = Literal["accepted", "rejected", "undecided", "unusable"]


HARNESS = "harness: "  # how the reason of a row begins whose judging failed


class Row(Record):
    """One kernel of an audit.

    rejected: a gate found a violation. undecided: none did, but not every gate could judge. unusable: it
    could not be judged at all, for the reason given.
    """

    id: str
    digest: str  # of kernel and reference: a changed file is judged anew
    state: State
    reason: str = ""
    label: bool | None = None
    judgements: tuple[Judgement, ...] = ()
    notes: tuple[str, ...] = ()  # what of the reference is not covered
    seconds: float = 0.0

    @property
    def failures(self) -> tuple[Verdict, ...]:
        """The first failure of each gate, over all of the reference's kinds of calls."""
        failed = [v for j in self.judgements for v in j.verdicts if v.status is Status.FAIL]
        return tuple({verdict.gate: verdict for verdict in reversed(failed)}.values())[::-1]

    @property
    def harness_failed(self) -> bool:
        """Whether something of ours went wrong: nobody's verdict, and ours to fix."""
        errors = any(v.status is Status.ERROR for j in self.judgements for v in j.verdicts)
        return errors or self.reason.startswith(HARNESS)

    @property
    def judged(self) -> bool:
        """Whether it counts in the rates."""
        return self.state != "unusable"


class Share(Record):
    """k of n, with Wilson's interval."""

    k: int
    n: int
    low: float
    high: float

    @property
    def value(self) -> float:
        """The share; nought of nought is nought."""
        return self.k / self.n if self.n else 0.0


def share(k: int, n: int, z: float = 1.959964) -> Share:
    """A share with its 95 % interval (E. B. Wilson, JASA 22, 1927), which holds for few and for rare."""
    if not n:
        return Share(k=0, n=0, low=0.0, high=1.0)
    p, zz = k / n, z * z
    centre = (p + zz / (2 * n)) / (1 + zz / n)
    half = z / (1 + zz / n) * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Share(k=k, n=n, low=0.0 if k == 0 else low, high=1.0 if k == n else high)


class Confusion(Record):
    """The source's labels against the gates' verdicts."""

    counts: dict[str, dict[State, int]]  # "right" and "wrong" by state

    @property
    def labelled(self) -> int:
        """How many kernels have a label."""
        return sum(sum(row.values()) for row in self.counts.values())


class Summary(Record):
    """An audit in numbers."""

    kernels: int
    states: dict[State, int]
    tolerance_free: Share  # any tolerance-free gate failed
    tolerance_free_without_authenticity: Share
    any_gate: Share
    gates: dict[str, int]  # kernels that each gate rejects
    harness: tuple[str, ...]  # ids of rows in which the harness itself failed
    confusion: Confusion
    disagreements: tuple[str, ...]  # ids: the label says right and a gate says no, or the other way round


def summarise(rows: Sequence[Row]) -> Summary:
    """Rates over what could be judged, and the confusion table over what has a label."""
    judged = [row for row in rows if row.judged]
    states = Counter(row.state for row in rows)
    gates = Counter(verdict.gate for row in judged for verdict in row.failures)
    counts: dict[str, dict[State, int]] = {}
    for label, name in ((True, "right"), (False, "wrong")):
        counts[name] = dict(Counter(row.state for row in rows if row.label is label))
    return Summary(
        kernels=len(rows),
        states=dict(states),
        tolerance_free=share(sum(_free(row, set()) for row in judged), len(judged)),
        tolerance_free_without_authenticity=share(
            sum(_free(row, {"authenticity"}) for row in judged), len(judged)
        ),
        any_gate=share(sum(row.state == "rejected" for row in judged), len(judged)),
        gates=dict(gates.most_common()),
        harness=tuple(row.id for row in rows if row.harness_failed),
        confusion=Confusion(counts=counts),
        disagreements=tuple(row.id for row in rows if disagrees(row)),
    )


def _free(row: Row, but: Iterable[str]) -> bool:
    return any(verdict.tolerance_free and verdict.gate not in but for verdict in row.failures)


def disagrees(row: Row) -> bool:
    """Whether label and verdict contradict each other."""
    return (row.label is True and row.state == "rejected") or (row.label is False and row.state == "accepted")
