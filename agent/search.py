"""The search loop: propose, judge, compare, promote, record.

Between its effects (the lab, the proposer, the clock) the loop is deterministic, and every effect's result
is an event. A killed run is resumed by running the same loop over the recorded events: while there are any,
a result is read instead of made. So a kill costs at most the effect in flight, and resuming has no code of
its own that could be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from agent import context, dropout, promote
from agent.buckets import compose, configs_in
from agent.dispatch import read
from agent.events import (
    ALL_CASES,
    AnyEvent,
    Compared,
    DropoutEnded,
    DropoutStarted,
    Finding,
    Finished,
    Judged,
    Measured,
    Outcome,
    Promoted,
    Proposal,
    RunStarted,
    Settled,
)
from agent.journal import Budget, Clock, E, Journal, Record
from agent.lab import Comparison, Config, Knowledge, Lab, Level, Proposer, Retrieve
from agent.state import SearchState, fold
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.records import Case, Judgement, Status

Comparisons = Mapping[str, Comparison]
Findings = dict[str, tuple[Finding, str]]
"""By bucket: what was found, and why."""


class Search:
    """One run. `run()` goes on from the recorded events until the budget or the ideas end."""

    def __init__(
        self,
        lab: Lab,
        proposer: Proposer,
        retrieve: Retrieve,
        start: RunStarted,
        *,
        budget: Budget,
        record: Record,
        recorded: Sequence[AnyEvent] = (),
        progress: Callable[[str], object] = lambda _: None,
        clock: Clock = time.monotonic,
    ) -> None:
        """`record` returns when the event is durable; `clock` is in seconds.

        Raises UsageError if `recorded` belongs to a run that was started differently.
        """
        self.lab, self.proposer, self.retrieve = lab, proposer, retrieve
        self.budget, self.progress = budget, progress
        self.journal = Journal(recorded, record, clock)
        started = self.journal.emit(RunStarted, lambda: start)
        if started.model_copy(update={"elapsed": start.elapsed}) != start:
            raise UsageError("the ledger is of another run (start, seed, cases or policy); start a new one")
        self.state = fold([started])
        self._buckets = {b.name: (b, cases) for b, cases in self.state.grid.group(start.cases).items()}
        self._knowledge: tuple[str, Knowledge] | None = None

    def run(self) -> SearchState:
        """Search; `best` of the returned state is the best candidate, after Ctrl-C too."""
        reason: Literal["exhausted", "budget", "interrupted"]
        try:
            self._measure()
            reason = self._search()
        except KeyboardInterrupt:
            reason = "interrupted"
        if self.journal.upcoming is None:
            self._emit(Finished, lambda: Finished(reason=reason, best=self.state.incumbent))
        return self.state

    def _search(self) -> Literal["exhausted", "budget"]:
        while self._affordable():
            proposal = self._propose()
            if proposal:
                self._settle(proposal, self._try(proposal))
            if not self._look_elsewhere(exhausted=proposal is None):
                return "exhausted"
        return "budget"

    # One proposal

    def _propose(self) -> Proposal | None:
        upcoming = self.journal.upcoming
        if upcoming is not None and not isinstance(upcoming, Proposal):
            return None  # the recorded run had nothing to propose here
        view = context.build(self.state, self._retrieved()) if upcoming is None else None
        proposal = self.proposer.propose(view) if view else upcoming
        return self._emit(Proposal, lambda: proposal) if proposal else None  # type: ignore[arg-type, return-value]

    def _try(self, proposal: Proposal) -> list[Outcome]:
        if not proposal.moves:
            return [self._try_kernel(proposal)]
        if objection := self._objection(proposal.candidate, "screen"):
            found = self._blame(objection, [move.bucket for move in proposal.moves])
            return [Outcome(bucket=b, finding=f, reason=why) for b, (f, why) in found.items()]
        return self._try_moves(proposal)

    def _try_kernel(self, proposal: Proposal) -> Outcome:
        """A whole file against the incumbent, on all cases."""
        candidate = proposal.candidate
        if candidate.id == self.state.incumbent:
            return Outcome(bucket=ALL_CASES, finding="no gain", reason="it is the incumbent")
        if objection := self._objection(candidate, "screen"):
            ((finding, why),) = self._blame(objection, [ALL_CASES]).values()
            return Outcome(bucket=ALL_CASES, finding=finding, reason=why)
        trial = self._compare(candidate, self.state.best, [ALL_CASES])
        better = self._better_start if proposal.origin == "seed" else self._better
        finding, why = self._adopt_kernel(candidate, better) if better(trial) else ("no gain", "")
        realised = promote.gain(trial, self._weights)
        return Outcome(bucket=ALL_CASES, finding=finding, realised=realised, reason=why)

    def _try_moves(self, proposal: Proposal) -> list[Outcome]:
        """New configurations in some buckets, each decided on its own."""
        base = self.state.candidate(proposal.base)
        configs = {move.bucket: move.config for move in proposal.moves}
        trial = self._compare(proposal.candidate, base, configs)
        won = self._winners(trial, configs)
        found: Findings = dict.fromkeys(configs, ("no gain", ""))
        if won and self.state.episode:
            found |= self._advance(proposal, won)
        elif won:
            found |= self._adopt_moves(proposal, won)
        return [
            Outcome(bucket=b, finding=f, realised=promote.gain(self._part(trial, b)), reason=why)
            for b, (f, why) in found.items()
        ]

    def _settle(self, proposal: Proposal, outcomes: list[Outcome]) -> None:
        name = proposal.candidate.id
        self._emit(Settled, lambda: Settled(candidate=name, outcomes=tuple(outcomes)))
        self.progress(_line(self.state, proposal, outcomes))

    # Promotion

    def _adopt_moves(self, proposal: Proposal, won: dict[str, Config]) -> Findings:
        """Put the winning configurations into the incumbent, if they win a second time and all gates pass."""
        found: Findings = dict.fromkeys(won, ("unconfirmed", ""))
        while won:
            merged = self._merge(self.state.best, proposal, won)
            if objection := self._objection(merged, "screen"):
                return found | self._blame(objection, list(won))
            trial = self._compare(merged, self.state.best, won)
            if (still := self._winners(trial, won)) == won:
                if objection := self._objection(merged, "full"):
                    return found | self._blame(objection, list(won))
                self._promote(merged, trial, won)
                return found | dict.fromkeys(won, ("promoted", ""))
            won = still
        return found

    def _adopt_kernel(
        self, candidate: Candidate, better: Callable[[Comparisons], bool]
    ) -> tuple[Finding, str]:
        """Make a nominated file the incumbent, if it wins a second time and all gates pass."""
        trial = self._compare(candidate, self.state.best, [ALL_CASES])
        if not better(trial):
            return "unconfirmed", ""
        if objection := self._objection(candidate, "full"):
            return self._blame(objection, [ALL_CASES])[ALL_CASES]
        self._promote(candidate, trial, [ALL_CASES])
        return "promoted", ""

    def _advance(self, proposal: Proposal, won: dict[str, Config]) -> Findings:
        """Move a dropout episode's head forward, and challenge the incumbent from there."""
        base = self.state.candidate(proposal.base)
        head = self._merge(base, proposal, won)
        if objection := self._objection(head, "screen"):
            return self._blame(objection, list(won))
        gain = promote.gain(self._compare(head, base, won))
        self._emit(
            Promoted, lambda: Promoted(candidate=head.id, role="head", buckets=tuple(won), gain=gain)
        )
        found: Findings = dict.fromkeys(won, ("advanced", ""))
        if proposal.kernel != self.state.kernel(self.state.incumbent):
            if self._better(self._compare(head, self.state.best, [ALL_CASES])):
                outcome = self._adopt_kernel(head, self._better)
                found |= dict.fromkeys(won, outcome) if outcome[0] == "promoted" else {}
            return found
        new = {bucket: config for bucket, config in won.items() if not self._has(bucket, config)}
        nominated = self._winners(self._compare(head, self.state.best, new), new) if new else {}
        adopted = self._adopt_moves(proposal, nominated)
        return found | {b: outcome for b, outcome in adopted.items() if outcome[0] != "unconfirmed"}

    def _merge(self, base: Candidate, proposal: Proposal, won: dict[str, Config]) -> Candidate:
        """The base with the winning moves only: often the proposed candidate itself."""
        note = "; ".join(f"{m.bucket}: {m.change}" for m in proposal.moves if m.bucket in won)
        moved = {self._buckets[bucket][0]: config for bucket, config in won.items()}
        merged = compose(base, self.state.grid, moved, note)
        if merged.id not in self.state.proposals and merged.id != self.state.run.start.id:
            self._emit(
                Proposal,
                lambda: Proposal(
                    origin="merge",
                    candidate=merged,
                    base=base.id,
                    kernel=proposal.kernel,
                    moves=tuple(move for move in proposal.moves if move.bucket in won),
                    because=f"the moves of {proposal.candidate.id[:12]} that won",
                ),
            )
        return merged

    def _promote(self, candidate: Candidate, trial: Comparisons, buckets: Sequence[str] | Findings) -> None:
        medians = {case: comparison.candidate_us for case, comparison in trial.items()}
        self._emit(
            Promoted,
            lambda: Promoted(
                candidate=candidate.id,
                role="incumbent",
                buckets=tuple(buckets),
                gain=promote.gain(trial, self._weights),
                latency_us=medians,
            ),
        )

    def _has(self, bucket: str, config: Config) -> bool:
        """True iff the incumbent already uses this configuration all over the bucket."""
        table = read(self.state.best.source)
        return configs_in(table, self.state.grid, self._buckets[bucket][1]) == (config,)
