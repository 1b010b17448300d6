"""What a trial asks of the lab, and how it reads the answers: judgements, comparisons, who is to blame."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from agent import promote
from agent.buckets import configs_in
from agent.dispatch import read
from agent.events import ALL_CASES, Compared, Finding, Judged, Promoted
from agent.journal import Journal
from agent.lab import Comparison, Config, Lab, Level, TimingFault
from agent.state import SearchState
from atrex.candidate import Candidate
from atrex.records import Case, Judgement, Ratio

FULL_SCREENINGS = 4.0
"""Screenings that a full judgement is expected to take, until one has been seen."""
_EXTENT = re.compile(r"(\w+)=(\d+)")  # in a shape's label
Comparisons = Mapping[str, Comparison]
Configs = dict[str, Config]
"""New configurations by bucket."""
Findings = dict[str, tuple[Finding, str]]
"""What was found and why, by bucket."""


class Examiner:
    """Judges, compares and promotes; everything that happens goes through the journal."""

    def __init__(self, lab: Lab, journal: Journal) -> None:
        """The journal's run says which cases and buckets there are. Raises UsageError as `Grid`."""
        self.lab, self.journal = lab, journal
        run, grid = journal.state.run, journal.state.grid
        self.policy = run.promotion
        self.buckets = {bucket.name: bucket for bucket in grid.buckets}
        self.cases = {bucket.name: cases for bucket, cases in grid.group(run.cases).items()}
        self.cases[ALL_CASES] = run.cases
        self._weights = {case.id: case.weight for case in run.cases}
        self._seconds = dict[Level, float]()
        if run.judged_seconds is not None:
            self._seconds["full"] = run.judged_seconds
        self._judged_at = journal.state.elapsed

    @property
    def state(self) -> SearchState:
        """The state of the search now."""
        return self.journal.state

    @property
    def price(self) -> float:
        """Expected seconds of a promotion, by the last judgement by all gates or else the last screening."""
        return self._seconds.get("full", FULL_SCREENINGS * self._seconds.get("screen", 0.0))

    @property
    def timed_long(self) -> bool:
        """Whether timing has taken as long by now, since the last judgement, as a promotion takes."""
        return self.state.elapsed - self._judged_at >= self.price

    # Asking the lab

    def objection(self, candidate: Candidate, level: Level) -> Judgement | None:
        """The judgement, unless the candidate is accepted; one that passed a screen keeps its pass."""
        if level == "screen" and candidate.id in self.state.accepted:
            return None
        before = self.state.elapsed
        event = self.journal.emit(Judged, lambda: self._judged(candidate, level))
        self._judged_at = self.state.elapsed
        self._seconds[level] = self._judged_at - before
        return None if event.judgement.accepted else event.judgement

    def _judged(self, candidate: Candidate, level: Level) -> Judged:
        """A harness that could not judge has said nothing about the candidate: it is asked once more."""
        cases = self.state.run.cases
        judgement, before = self.lab.judge(candidate, level=level, cases=cases), ""
        if promote.judged(judgement) == "unjudged":
            before = promote.reason(judgement)
            judgement = self.lab.judge(candidate, level=level, cases=cases)
        return Judged(candidate=candidate.id, level=level, judgement=judgement, asked_again=before)

    def compare(self, candidate: Candidate, other: Candidate, buckets: Collection[str]) -> Comparisons:
        """Paired timings in all cases of some buckets. Raises TimingFault."""
        cases = [case for bucket in buckets for case in self.cases[bucket]]

        def timed() -> Compared:
            try:
                found = self._compared(candidate, other, cases)
            except TimingFault as fault:
                return Compared(
                    candidate=candidate.id, against=other.id, fault=str(fault) or "no reason given"
                )
            return Compared(candidate=candidate.id, against=other.id, comparisons=found)

        event = self.journal.emit(Compared, timed)
        if event.fault:
            raise TimingFault(event.fault)
        return event.comparisons

    def _compared(
        self, candidate: Candidate, other: Candidate, cases: Sequence[Case]
    ) -> dict[str, Comparison]:
        """A machine that could not time is asked once more. Raises TimingFault."""
        try:
            return self.lab.compare(candidate, other, cases)
        except TimingFault as fault:
            if not fault.of_machine:
                raise
        return self.lab.compare(candidate, other, cases)

    # Recording what won

    def promote(self, candidate: Candidate, trial: Comparisons, buckets: Collection[str]) -> None:
        """Make a candidate the incumbent, by its comparison with the last one."""
        medians = {case: comparison.candidate_us for case, comparison in trial.items()}
        event = Promoted(
            candidate=candidate.id,
            role="incumbent",
            buckets=tuple(buckets),
            gain=self.gain(trial),
            latency_us=medians,
        )
        self.journal.emit(Promoted, lambda: event)

    def head(self, candidate: Candidate, gain: Ratio, buckets: Collection[str]) -> None:
        """Make a candidate the head of the dropout episode."""
        event = Promoted(candidate=candidate.id, role="head", buckets=tuple(buckets), gain=gain)
        self.journal.emit(Promoted, lambda: event)

    # Reading what the lab said

    def gain(self, trial: Comparisons) -> Ratio:
        """The speed-up over the compared cases, by weight."""
        return promote.gain(trial, self._weights)

    def part(self, trial: Comparisons, bucket: str) -> Comparisons:
        """A comparison's cases of one bucket."""
        return {case.id: trial[case.id] for case in self.cases[bucket]}

    def gain_in(self, trial: Comparisons, buckets: Collection[str]) -> Ratio:
        """The speed-up over the cases of some buckets, all alike: what a move did there."""
        return promote.gain({case: c for bucket in buckets for case, c in self.part(trial, bucket).items()})

    def winners(self, trial: Comparisons, configs: Configs) -> Configs:
        """Of some buckets' configurations, those that made the bucket faster."""
        return {bucket: c for bucket, c in configs.items() if self.better(self.part(trial, bucket))}

    def better(self, trial: Comparisons) -> bool:
        """As `promote.better`, by this run's policy."""
        return promote.better(trial, self.policy)

    def better_start(self, trial: Comparisons) -> bool:
        """As `promote.better_start`, by this run's policy and weights."""
        return promote.better_start(trial, self.policy, self._weights)

    def has(self, bucket: str, config: Config) -> bool:
        """True iff the incumbent already uses this configuration all over the bucket."""
        table = read(self.state.best.source)
        return configs_in(table, self.state.grid, self.cases[bucket]) == (config,)

    def blame(self, objection: Judgement, buckets: Collection[str]) -> Findings:
        """Which of the buckets that moved is to blame for a rejected candidate.

        A lone move is; of several, those whose cases a failing gate shows. If it shows none of them, all
        are suspect and will be tried alone.
        """
        why = promote.reason(objection)
        if promote.judged(objection) == "unjudged":
            return dict.fromkeys(buckets, ("unjudged", why))
        seen = promote.witnesses(objection)
        guilty = {b for b in buckets if len(buckets) == 1 or any(self._lies_in(where, b) for where in seen)}
        if not guilty:
            return dict.fromkeys(buckets, ("suspect", why))
        return {b: ("wrong", why) if b in guilty else ("untested", why) for b in buckets}

    def _lies_in(self, where: str, bucket: str) -> bool:
        """Whether a witness, which names a case or the extents of a shape, is of the bucket."""
        if any(case.id == where for case in self.cases[bucket]):
            return True
        extents = {name: int(extent) for name, extent in _EXTENT.findall(where)}
        box = self.buckets.get(bucket)
        return box is not None and set(box.dims) <= set(extents) and box.holds(extents)
