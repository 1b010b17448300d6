"""One proposal on trial: judge it, compare it, adopt what wins, and say what was found."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from agent import promote, specialists
from agent.buckets import compose, configs_in
from agent.dispatch import read
from agent.events import ALL_CASES, AUTHORED, Compared, Finding, Judged, Outcome, Promoted, Proposal
from agent.journal import Journal
from agent.lab import Comparison, Config, Lab, Level, TimingFault
from agent.renaming import Unmergeable
from agent.state import SearchState
from atrex.candidate import Candidate
from atrex.problem import load_problem
from atrex.records import Judgement

_EXTENT = re.compile(r"(\w+)=(\d+)")  # in a shape's label
Comparisons = Mapping[str, Comparison]
Better = Callable[[Comparisons], bool]
Configs = dict[str, Config]
"""New configurations by bucket."""
Findings = dict[str, tuple[Finding, str]]
"""What was found and why, by bucket."""


class Trial:
    """Tries proposals in a lab; everything that happens goes through the journal."""

    def __init__(self, lab: Lab, journal: Journal) -> None:
        """The journal's run says which cases and buckets there are. Raises UsageError as `Grid`."""
        self.lab, self.journal = lab, journal
        run, grid = journal.state.run, journal.state.grid
        self._policy = run.promotion
        self._weights = {case.id: case.weight for case in run.cases}
        self._buckets = {bucket.name: bucket for bucket in grid.buckets}
        self._cases = {bucket.name: cases for bucket, cases in grid.group(run.cases).items()}
        self._cases[ALL_CASES] = run.cases

    @property
    def state(self) -> SearchState:
        """The state of the search now."""
        return self.journal.state

    def sound(self, candidate: Candidate) -> bool:
        """Whether a candidate passes a screening, unless one is on record."""
        return self._objection(candidate, "screen") is None

    def outcomes(self, proposal: Proposal) -> tuple[Outcome, ...]:
        """Try a proposal and adopt what wins; one outcome a move, or one for a whole file."""
        buckets = [move.bucket for move in proposal.moves] or [ALL_CASES]
        try:
            return self._tried(proposal, buckets)
        except TimingFault as fault:
            found: Finding = "wrong" if len(buckets) == 1 else "suspect"
            return tuple(Outcome(bucket=b, finding=found, reason=f"timing: {fault}") for b in buckets)

    def _tried(self, proposal: Proposal, buckets: list[str]) -> tuple[Outcome, ...]:
        """The gates cost a hundred times a comparison, and a tuner's move is our own file: time it first."""
        if proposal.moves:
            return self._moves(proposal)
        if objection := self._objection(proposal.candidate, "screen"):
            found = self._blame(objection, buckets)
            return tuple(Outcome(bucket=b, finding=f, reason=why) for b, (f, why) in found.items())
        if proposal.origin == "model":
            return (self._written(proposal.candidate),)
        return (self._whole(proposal.candidate, self._better_start)[0],)

    def _whole(self, candidate: Candidate, better: Better) -> tuple[Outcome, Comparisons]:
        """A whole file against the incumbent, on all cases; and how it compares."""
        if candidate.id == self.state.incumbent:
            return Outcome(bucket=ALL_CASES, finding="no gain", reason="it is the incumbent already"), {}
        trial = self._compare(candidate, self.state.best, [ALL_CASES])
        finding, why = self._confirm(candidate, better) if better(trial) else ("no gain", "")
        realised = promote.gain(trial, self._weights)
        return Outcome(bucket=ALL_CASES, finding=finding, realised=realised, reason=why), trial

    def _written(self, candidate: Candidate) -> Outcome:
        """A model's file: the new incumbent, a part of it, or in a dropout episode at least the new head."""
        outcome, trial = self._whole(candidate, self._better)
        if not trial or self._better(trial):
            return outcome
        won = [b for b in self._buckets if b in self._cases and self._better(self._part(trial, b))]
        if won:
            outcome = self._specialised(candidate, won)
        return outcome if outcome.finding != "no gain" else self._headed(candidate) or outcome

    def _headed(self, candidate: Candidate) -> Outcome | None:
        """In a dropout episode: the file as its new head, if it beats the present one."""
        head = self.state.base
        if head == self.state.incumbent:
            return None
        trial = self._compare(candidate, self.state.candidate(head), [ALL_CASES])
        if not self._better(trial):
            return None
        gain = promote.gain(trial, self._weights)
        self.journal.emit(
            Promoted, lambda: Promoted(candidate=candidate.id, role="head", buckets=(ALL_CASES,), gain=gain)
        )
        return Outcome(bucket=ALL_CASES, finding="advanced", realised=gain)

    def _specialised(self, candidate: Candidate, won: Sequence[str]) -> Outcome:
        """The incumbent with the file for the buckets in which it is faster, if that is a better whole."""
        try:
            merged = self._dispatcher(candidate, won)
        except Unmergeable as why:
            return Outcome(
                bucket=ALL_CASES, finding="no gain", reason=f"faster in {'; '.join(won)}, but {why}"
            )
        trial = self._compare(merged, self.state.best, [ALL_CASES])
        realised = promote.gain(trial, self._weights)
        if not self._better(trial):
            return Outcome(bucket=ALL_CASES, finding="unconfirmed", realised=realised)
        if objection := self._objection(merged, "screen") or self._objection(merged, "full"):
            why_not = f"merged: {promote.reason(objection)}"
            return Outcome(bucket=ALL_CASES, finding="no gain", realised=realised, reason=why_not)
        self._promote(merged, trial, [ALL_CASES])
        return Outcome(
            bucket=ALL_CASES, finding="promoted", realised=realised, reason=f"for {'; '.join(won)}"
        )

    def _dispatcher(self, candidate: Candidate, won: Sequence[str]) -> Candidate:
        """One file of both, as a proposal. Raises Unmergeable."""
        best, run = self.state.best, self.state.run
        buckets = [self._buckets[bucket] for bucket in won]
        note = f"{candidate.id[:12]} for {'; '.join(won)}"
        problem = load_problem(run.operator)
        merged = specialists.merge(problem, self.state.grid, best, candidate, buckets, run.cases, note)
        if merged.id not in self.state.proposals:
            kernel = self.state.kernel(best.id) or f"{AUTHORED}{merged.id[:12]}"
            self.journal.emit(
                Proposal,
                lambda: Proposal(
                    origin="merge", candidate=merged, base=best.id, kernel=kernel, because=note,
                    technique="specialists",
                ),
            )  # fmt: skip
        return merged

    def _confirm(self, candidate: Candidate, better: Better) -> tuple[Finding, str]:
        """Make a nominated file the incumbent, if it wins a second time and all gates pass."""
        trial = self._compare(candidate, self.state.best, [ALL_CASES])
        if not better(trial):
            return "unconfirmed", ""
        if objection := self._objection(candidate, "full"):
            return self._blame(objection, [ALL_CASES])[ALL_CASES]
        self._promote(candidate, trial, [ALL_CASES])
        return "promoted", ""

    def _moves(self, proposal: Proposal) -> tuple[Outcome, ...]:
        """New configurations in some buckets, each decided on its own."""
        base = self.state.candidate(proposal.base)
        configs = {move.bucket: move.config for move in proposal.moves}
        trial = self._compare(proposal.candidate, base, configs)
        won = self._winners(trial, configs)
        found: Findings = dict.fromkeys(configs, ("no gain", ""))
        if won:
            found |= self._advance(proposal, trial, won) if self.state.episode else self._adopt(proposal, won)
        return tuple(
            Outcome(bucket=b, finding=f, realised=promote.gain(self._part(trial, b)), reason=why)
            for b, (f, why) in found.items()
        )

    def _adopt(self, proposal: Proposal, won: Configs) -> Findings:
        """Put winning configurations into the incumbent, if they win a second time and all gates pass."""
        found: Findings = dict.fromkeys(won, ("unconfirmed", ""))
        while won:
            merged = self._merge(self.state.best, proposal, won)
            if objection := self._objection(merged, "screen"):
                return found | self._blame(objection, won)
            trial = self._compare(merged, self.state.best, won)
            if (still := self._winners(trial, won)) == won:
                if objection := self._objection(merged, "full"):
                    return found | self._blame(objection, won)
                self._promote(merged, trial, won)
                return found | dict.fromkeys(won, ("promoted", ""))
            won = still
        return found

    def _advance(self, proposal: Proposal, trial: Comparisons, won: Configs) -> Findings:
        """Move the head of a dropout episode forward, and challenge the incumbent from there."""
        head = self._merge(self.state.candidate(proposal.base), proposal, won)
        if objection := self._objection(head, "screen"):
            return self._blame(objection, won)
        gain = promote.gain({case: c for b in won for case, c in self._part(trial, b).items()})
        buckets = tuple(won)
        self.journal.emit(
            Promoted, lambda: Promoted(candidate=head.id, role="head", buckets=buckets, gain=gain)
        )
        found: Findings = dict.fromkeys(won, ("advanced", ""))
        if proposal.kernel != self.state.kernel(self.state.incumbent):
            outcome, _ = self._whole(head, self._better)
            return dict.fromkeys(won, ("promoted", "")) if outcome.finding == "promoted" else found
        new = {bucket: config for bucket, config in won.items() if not self._has(bucket, config)}
        nominated = self._winners(self._compare(head, self.state.best, new), new) if new else {}
        adopted = self._adopt(proposal, nominated)
        return found | {b: finding for b, finding in adopted.items() if finding[0] != "unconfirmed"}

    def _merge(self, base: Candidate, proposal: Proposal, won: Configs) -> Candidate:
        """The base with the winning moves only: often the proposed candidate itself."""
        moves = tuple(move for move in proposal.moves if move.bucket in won)
        note = "; ".join(f"{move.bucket}: {move.change}" for move in moves)
        moved = {self._buckets[bucket]: config for bucket, config in won.items()}
        merged = compose(base, self.state.grid, moved, note)
        if merged.id not in self.state.proposals:
            because = f"the moves of {proposal.candidate.id[:12]} that won"
            self.journal.emit(
                Proposal,
                lambda: Proposal(
                    origin="merge",
                    candidate=merged,
                    base=base.id,
                    kernel=proposal.kernel,
                    moves=moves,
                    because=because,
                ),
            )
        return merged

    def _promote(self, candidate: Candidate, trial: Comparisons, buckets: Collection[str]) -> None:
        gain = promote.gain(trial, self._weights)
        medians = {case: comparison.candidate_us for case, comparison in trial.items()}
        event = Promoted(
            candidate=candidate.id,
            role="incumbent",
            buckets=tuple(buckets),
            gain=gain,
            latency_us=medians,
        )
        self.journal.emit(Promoted, lambda: event)

    # Asking the lab

    def _objection(self, candidate: Candidate, level: Level) -> Judgement | None:
        """The judgement, unless the candidate is accepted; one that passed a screen keeps its pass."""
        if level == "screen" and candidate.id in self.state.accepted:
            return None
        event = self.journal.emit(
            Judged,
            lambda: Judged(
                candidate=candidate.id,
                level=level,
                judgement=self.lab.judge(candidate, level=level, cases=self.state.run.cases),
            ),
        )
        return None if event.judgement.accepted else event.judgement

    def _compare(self, candidate: Candidate, other: Candidate, buckets: Collection[str]) -> Comparisons:
        cases = [case for bucket in buckets for case in self._cases[bucket]]

        def timed() -> Compared:
            try:
                found = self.lab.compare(candidate, other, cases)
            except TimingFault as fault:
                return Compared(
                    candidate=candidate.id, against=other.id, fault=str(fault) or "no reason given"
                )
            return Compared(candidate=candidate.id, against=other.id, comparisons=found)

        event = self.journal.emit(Compared, timed)
        if event.fault:
            raise TimingFault(event.fault)
        return event.comparisons

    # Reading what it said

    def _part(self, trial: Comparisons, bucket: str) -> Comparisons:
        return {case.id: trial[case.id] for case in self._cases[bucket]}

    def _winners(self, trial: Comparisons, configs: Configs) -> Configs:
        return {b: c for b, c in configs.items() if self._better(self._part(trial, b))}

    def _better(self, trial: Comparisons) -> bool:
        return promote.better(trial, self._policy)

    def _better_start(self, trial: Comparisons) -> bool:
        return promote.better_start(trial, self._policy, self._weights)

    def _has(self, bucket: str, config: Config) -> bool:
        """True iff the incumbent already uses this configuration all over the bucket."""
        table = read(self.state.best.source)
        return configs_in(table, self.state.grid, self._cases[bucket]) == (config,)

    def _lies_in(self, where: str, bucket: str) -> bool:
        """Whether a witness, which names a case or the extents of a shape, is of the bucket."""
        if any(case.id == where for case in self._cases[bucket]):
            return True
        extents = {name: int(extent) for name, extent in _EXTENT.findall(where)}
        box = self._buckets.get(bucket)
        return box is not None and set(box.dims) <= set(extents) and box.holds(extents)

    def _blame(self, objection: Judgement, buckets: Collection[str]) -> Findings:
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
