"""The search loop: propose, try, and look elsewhere when nothing is gained.

Between its effects (the lab, the proposer, the clock) the loop is deterministic, and every effect's result
is an event. A killed run is resumed by running the same loop over the recorded events: while there are any,
a result is read instead of made. So a kill costs at most the effect in flight, and resuming has no code of
its own that could be wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

from agent import context, dropout
from agent.dropout import Item
from agent.events import (
    ALL_CASES,
    AnyEvent,
    DropoutEnded,
    DropoutStarted,
    Finished,
    Judged,
    Measured,
    Missed,
    Outcome,
    Profiled,
    Proposal,
    RunStarted,
    Settled,
)
from agent.journal import Budget, Clock, Journal, Record
from agent.lab import Knowledge, Lab, Profiler, Proposer, Retrieve, TimingFault, Unanswered
from agent.nominees import fruitless, nominate
from agent.profiling.diagnose import lines
from agent.state import SearchState
from agent.trial import Trial
from atrex.errors import AtrexError
from atrex.records import Case


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
        profile: Profiler | None = None,
        progress: Callable[[str], object] = lambda _: None,
        clock: Clock = time.monotonic,
        began: float | None = None,
    ) -> None:
        """`record` returns when an event is durable; `progress` takes a line for people; `clock` is in
        seconds, and the session began on it when `began` says, or now; `profile` is asked about each new
        incumbent.

        Raises UsageError if `recorded` belongs to a run that was started differently.
        """
        self.lab, self.proposer, self.retrieve = lab, proposer, retrieve
        self.budget, self.progress = budget, progress
        self.journal = Journal(start, recorded, record, clock, began)
        self.profile = profile
        self.trial = Trial(lab, self.journal)
        self._retrieved: tuple[str, Knowledge] | None = None
        self.failure: AtrexError | None = None
        """Why there was no answer any more, if the proposer's failing ended the search."""

    @property
    def state(self) -> SearchState:
        """The state of the search now."""
        return self.journal.state

    def run(self) -> SearchState:
        """Search; `best` of the returned state is the best candidate, after Ctrl-C or a `failure` too."""
        reason: Literal["exhausted", "budget", "interrupted", "failed"]
        try:
            self._measure()
            reason = self._search()
        except KeyboardInterrupt:
            reason = "interrupted"
        except Unanswered as failed:
            reason, self.failure = "failed", failed.error
        if self.journal.upcoming is None:
            self.journal.emit(Finished, lambda: Finished(reason=reason, best=self.state.incumbent))
        return self.state

    def _search(self) -> Literal["exhausted", "budget"]:
        while self._affordable():
            answer = self._propose()
            if isinstance(answer, Proposal):
                self._settle(answer, self.trial.outcomes(answer))
            elif answer:
                self.progress(f"step {self.state.step}: no candidate: {answer.reason}")
            if not self._look_elsewhere(exhausted=answer is None):
                return "exhausted"
        return "budget"

    def _measure(self) -> None:
        start, cases = self.state.run.start, self.state.run.cases
        self.journal.emit(
            Measured,
            lambda: Measured(
                candidate=start.id,
                latencies=self.lab.measure(start, cases),
                bounds={case.id: self.lab.bound(case) for case in cases},
            ),
        )

    def _affordable(self) -> bool:
        recorded = self.journal.upcoming is not None
        return recorded or self.budget.allows(self.state, self.journal.elapsed)

    def _diagnose(self) -> None:
        """Profile an incumbent that has not been, on the case with the most time to recover."""
        state, profile = self.state, self.profile
        known = state.profile is not None and state.profile.candidate == state.incumbent
        if (
            profile is None
            or known
            or (self.journal.upcoming and not isinstance(self.journal.upcoming, Profiled))
        ):
            return
        worst = context.diagnose(state)[0].cases[0]
        self.journal.emit(Profiled, lambda: self._profiled(profile, worst))

    def _profiled(self, profile: Profiler, case: Case) -> Profiled:
        best, median = self.state.best, self.state.latency_us[case.id]
        try:
            found = profile(best, case, median)
        except TimingFault as fault:
            return Profiled(candidate=best.id, case=case.id, lines=(f"no profile: {fault}",))
        queries = dict.fromkeys(word for each in found for word in each.query.split())
        return Profiled(candidate=best.id, case=case.id, lines=lines(found), queries=tuple(queries))

    def _propose(self) -> Proposal | Missed | None:
        self._diagnose()
        upcoming = self.journal.upcoming
        if upcoming is None:
            answer = self._answer()
        else:  # what was recorded here is either the answer, or what followed from having none
            answer = upcoming if isinstance(upcoming, Proposal | Missed) else None
        return answer and self._emit(answer)

    def _answer(self) -> Proposal | Missed | None:
        """The best of what was timed where that is due, or nothing else is left; else the proposer's."""
        nomination = nominate(self.state) if self._due() else None
        answer = nomination or self._asked()
        return answer if answer or self.state.episode else nominate(self.state)

    def _asked(self) -> Proposal | Missed | None:
        seen = context.build(self.state, self._knowledge())
        try:
            return self.proposer.propose(seen)
        except AtrexError as error:
            raise Unanswered(error) from None

    def _due(self) -> bool:
        """Whether nominees go before the gates now: nothing better turns up, or the budget is at its end."""
        state = self.state
        then = self.journal.elapsed + self.trial.examiner.price
        if not self.budget.allows(replace(state, step=state.step + 1), then):
            return True
        patience = state.run.promotion.patience
        if state.run.dropout.enabled:
            patience = min(patience, state.run.dropout.patience)
        return not state.episode and (self.trial.examiner.timed_long or fruitless(state) >= patience)

    def _emit(self, answer: Proposal | Missed) -> Proposal | Missed:
        return self.journal.emit(type(answer), lambda: answer)

    def _settle(self, proposal: Proposal, outcomes: tuple[Outcome, ...]) -> None:
        name = proposal.candidate.id
        self.journal.emit(Settled, lambda: Settled(candidate=name, outcomes=outcomes))
        self.progress(_line(self.state, proposal, outcomes))

    def _knowledge(self) -> Knowledge:
        """What is retrieved for the present diagnosis, which changes with the incumbent."""
        incumbent = self.state.incumbent
        if self._retrieved is None or self._retrieved[0] != incumbent:
            self._retrieved = incumbent, self.retrieve(context.diagnose(self.state))
        return self._retrieved[1]

    # Optimisation dropout

    def _look_elsewhere(self, *, exhausted: bool) -> bool:
        """Begin or end a dropout episode where it is due; False when there is nothing left to look at."""
        state, policy = self.state, self.state.run.dropout
        if state.episode:
            if exhausted or state.episode.steps >= policy.horizon:
                self._restore()
            return True
        if not policy.enabled:
            return not exhausted
        if exhausted and state.barren >= policy.patience:
            return False  # nothing to propose, from wherever and with whatever hidden
        if exhausted or fruitless(state) >= policy.patience:
            self._drop()
        return True

    def _drop(self) -> None:
        """Begin an episode, unless its ancestor, if it has yet to meet a gate, turns out to be wrong."""
        drawn = cache(self._draw)
        upcoming = self.journal.upcoming
        ancestor = self.state.incumbent
        if isinstance(upcoming, Judged):
            ancestor = upcoming.candidate
        elif upcoming is None:
            ancestor = drawn().ancestor
        if ancestor != self.state.incumbent and not self.trial.sound(self.state.candidate(ancestor)):
            return
        event = self.journal.emit(DropoutStarted, drawn)
        self.progress(f"dropout: {len(event.hidden)} items hidden (p = {event.p:.2f}), on from an ancestor")

    def _draw(self) -> DropoutStarted:
        state = self.state
        seed = f"{state.run.seed}/dropout/{state.episodes}"
        hidden = dropout.draw(context.items(state, self._knowledge()), state.p, seed)
        hidden |= {Item("parent", state.incumbent)}
        parent = dropout.ancestor(context.archive(state), hidden, state.incumbent, seed)
        return DropoutStarted(p=state.p, hidden=tuple(sorted(hidden)), ancestor=parent)

    def _restore(self) -> None:
        episode = self.state.episode
        assert episode is not None
        notes = _notes(episode.hidden) if episode.found else ()
        self.journal.emit(DropoutEnded, lambda: DropoutEnded(found=episode.found, notes=notes))
        self.progress("dropout: " + ("a new best was found" if episode.found else "nothing found"))


def _notes(hidden: Iterable[Item]) -> tuple[str, ...]:
    """What a proposer is told about what it found a new best without."""
    return tuple(
        f"a better kernel was found while {kind} {key} was out of sight" for kind, key in sorted(hidden)
    )


def _line(state: SearchState, proposal: Proposal, outcomes: tuple[Outcome, ...]) -> str:
    """One line of progress: what was tried and what came of it."""
    changes = {move.bucket: move.change for move in proposal.moves} or {ALL_CASES: proposal.title}
    parts = []
    for outcome in outcomes:
        gain = f" {100 * (outcome.realised.median - 1):+.1f} %" if outcome.realised else ""
        parts.append(f"[{outcome.bucket}] {changes[outcome.bucket]}: {outcome.finding}{gain}")
    return f"step {state.step}: " + "; ".join(parts)
