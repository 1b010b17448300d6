"""Nominees: moves that won a comparison, and wait for a second one and for the gates.

The gates cost up to a hundred times a comparison. So a move is only timed at first, and what goes before the
gates is one candidate with the best move of every bucket, once timing has stopped to find better ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from agent import context, promote
from agent.buckets import compose, configs_in
from agent.dispatch import Rule, read, tunable
from agent.events import ALL_CASES, Finding, Move, Outcome, Promoted, Proposal
from agent.journal import Journal
from agent.lab import Config, Lab, Level
from agent.proposers.moves import saved, together
from agent.state import OPEN, WON, Attempt, Key, SearchState, config_key
from agent.trial import Comparisons, Configs, Findings, Trial
from atrex.candidate import Candidate
from atrex.records import Case, Judgement, Ratio

SLOWER = "faster than the incumbent, but not than another move"
_ADVANCED: tuple[Finding, str] = ("advanced", "")
_PROMOTED: tuple[Finding, str] = ("promoted", "")
FULL_SCREENINGS = 4.0
"""Screenings that a full judgement is expected to take, until one has been seen."""


def nominees(state: SearchState) -> dict[str, tuple[Attempt, ...]]:
    """Moves that won against what the incumbent uses, by bucket, the fastest first."""
    kernel = state.kernel(state.incumbent)
    if not tunable(state.best.source):
        return {}
    waiting = dict[Key, Attempt]()
    for attempt in state.attempts:
        if attempt.bucket != ALL_CASES and attempt.kernel == kernel and attempt.finding not in OPEN:
            waiting.pop(attempt.key, None)
            if attempt.finding == "advanced" or attempt.reason == SLOWER:
                waiting[attempt.key] = attempt
    cases = {bucket.name: inside for bucket, inside in state.grid.group(state.run.cases).items()}

    @cache
    def used(name: str, bucket: str) -> tuple[Config, ...]:
        return _used(state, name, cases[bucket])

    found = dict[str, list[Attempt]]()
    for attempt in waiting.values():
        now = used(state.incumbent, attempt.bucket)
        if now == used(attempt.base, attempt.bucket) and now != (attempt.config,):
            found.setdefault(attempt.bucket, []).append(attempt)
    return {bucket: tuple(sorted(each, key=lambda a: -_gain(a))) for bucket, each in found.items()}


def nominate(state: SearchState) -> Proposal | None:
    """The incumbent with the best nominee of every bucket that dare be together; None without any.

    Suspects of a wrong candidate are left out: the tuner proposes them alone.
    """
    suspects = {suspect.key for suspect in state.suspects}
    fit = {b: [a for a in each if a.key not in suspects] for b, each in nominees(state).items()}
    best = sorted((each[0] for each in fit.values() if each), key=lambda attempt: -_gain(attempt))
    kernel = state.kernel(state.incumbent)
    moves = together([_move(attempt) for attempt in best], kernel, state.lessons, state.beliefs)
    if not moves:
        return None
    boxes = {bucket.name: bucket for bucket in state.grid.buckets}
    note = "; ".join(f"{move.bucket}: {move.change}" for move in moves)
    configs = {boxes[move.bucket]: move.config for move in moves}
    return Proposal(
        origin="move",
        candidate=compose(state.best, state.grid, configs, note),
        base=state.incumbent,
        kernel=kernel,
        moves=tuple(moves),
        predicted=saved(context.diagnose(state), moves),
        because="the fastest of what was timed",
    )


def fruitless(state: SearchState) -> int:
    """Proposals in a row, outside dropout, that beat nothing: neither the incumbent nor a nominee."""
    steps = dict[int, bool]()
    for attempt in state.attempts:
        steps[attempt.step] = steps.get(attempt.step, False) or attempt.finding in WON
    won = [step for step, gained in steps.items() if gained]
    return min(state.stall, state.step - max(won, default=0))


class NominatingTrial(Trial):
    """Times moves, and puts only nominees before the gates; notes what judging costs."""

    def __init__(self, lab: Lab, journal: Journal) -> None:
        """As `Trial`."""
        super().__init__(lab, journal)
        self._seconds = dict[Level, float]()
        self._judged_at = journal.state.elapsed

    @property
    def price(self) -> float:
        """Expected seconds of a promotion, by the judgements so far."""
        screening = self._seconds.get("screen", 0.0)
        return screening + self._seconds.get("full", FULL_SCREENINGS * screening)

    @property
    def timed_long(self) -> bool:
        """Whether timing has taken as long by now, since the last judgement, as a promotion takes."""
        return self.state.elapsed - self._judged_at >= self.price

    def _moves(self, proposal: Proposal) -> tuple[Outcome, ...]:
        if self._nominated(proposal):
            return self._confirmed(proposal)
        if self.state.episode or not self._policy.patience:
            return super()._moves(proposal)
        return self._timed(proposal)

    def _nominated(self, proposal: Proposal) -> bool:
        """Whether all of its moves have won before: against what the incumbent uses."""
        if proposal.base != self.state.incumbent:
            return False
        waiting = {attempt.key for each in nominees(self.state).values() for attempt in each}
        return all(config_key(proposal.kernel, m.bucket, m.config) in waiting for m in proposal.moves)

    def _timed(self, proposal: Proposal) -> tuple[Outcome, ...]:
        """Moves that are only timed: which of them are better than the incumbent and than every nominee."""
        configs = {move.bucket: move.config for move in proposal.moves}
        trial = self._compare(proposal.candidate, self.state.candidate(proposal.base), configs)
        won, waiting = self._winners(trial, configs), nominees(self.state)
        outcomes = []
        for bucket in configs:
            gain = promote.gain(self._part(trial, bucket))
            best = max((_gain(attempt) for attempt in waiting.get(bucket, ())), default=1.0)
            found: Finding = "advanced" if bucket in won and gain.median > best else "no gain"
            why = SLOWER if bucket in won and found == "no gain" else ""
            outcomes.append(Outcome(bucket=bucket, finding=found, realised=gain, reason=why))
        return tuple(outcomes)

    def _confirmed(self, proposal: Proposal) -> tuple[Outcome, ...]:
        """Nominees together: those that win a second time become the incumbent, if all gates pass."""
        won = {move.bucket: move.config for move in proposal.moves}
        found: Findings = dict.fromkeys(won, ("unconfirmed", ""))
        gains = dict[str, Ratio]()
        while won:
            merged = self._merge(self.state.best, proposal, won)
            trial = self._compare(merged, self.state.best, won)
            gains |= {bucket: promote.gain(self._part(trial, bucket)) for bucket in won}
            still = self._winners(trial, won)
            if still == won:
                found |= self._passed(merged, trial, won)
                break
            won = still
        return tuple(
            Outcome(bucket=b, finding=f, realised=gains[b], reason=why) for b, (f, why) in found.items()
        )

    def _passed(self, merged: Candidate, trial: Comparisons, won: Configs) -> Findings:
        if objection := self._objection(merged, "screen") or self._objection(merged, "full"):
            return self._blame(objection, won)
        self._promote(merged, trial, won)
        return dict.fromkeys(won, _PROMOTED)

    def _advance(self, proposal: Proposal, trial: Comparisons, won: Configs) -> Findings:
        """Move the head of a dropout episode forward by timing alone; what challenges the incumbent from
        there is judged."""
        if not self._policy.patience:
            return super()._advance(proposal, trial, won)
        head = self._merge(self.state.candidate(proposal.base), proposal, won)
        gain = promote.gain({case: c for b in won for case, c in self._part(trial, b).items()})
        buckets = tuple(won)
        self.journal.emit(
            Promoted, lambda: Promoted(candidate=head.id, role="head", buckets=buckets, gain=gain)
        )
        return dict.fromkeys(won, _ADVANCED) | self._challenge(head, proposal, won)

    def _challenge(self, head: Candidate, proposal: Proposal, won: Configs) -> Findings:
        """What of a new head beats the incumbent, too."""
        if proposal.kernel != self.state.kernel(self.state.incumbent):
            outcome, _ = self._whole(head, self._better)
            return dict.fromkeys(won, _PROMOTED) if outcome.finding == "promoted" else {}
        new = {bucket: config for bucket, config in won.items() if not self._has(bucket, config)}
        nominated = self._winners(self._compare(head, self.state.best, new), new) if new else {}
        adopted = self._adopt(proposal, nominated)
        return {b: finding for b, finding in adopted.items() if finding[0] != "unconfirmed"}

    def _objection(self, candidate: Candidate, level: Level) -> Judgement | None:
        before, known = self.state.elapsed, self.state.accepted
        objection = super()._objection(candidate, level)
        if level == "full" or candidate.id not in known:
            self._judged_at = self.state.elapsed
            self._seconds[level] = self._judged_at - before
        return objection


def _move(attempt: Attempt) -> Move:
    return Move(
        bucket=attempt.bucket,
        config=attempt.config,
        change=attempt.change,
        techniques=attempt.techniques,
        predicted=_gain(attempt),
    )


def _gain(attempt: Attempt) -> float:
    return attempt.realised.median if attempt.realised else 1.0


def _used(state: SearchState, name: str, cases: Sequence[Case]) -> tuple[Config, ...]:
    """What a candidate uses in these cases; nothing, if its file has no table."""
    source = state.candidate(name).source
    return configs_in(_table(source), state.grid, cases) if tunable(source) else ()


@lru_cache(maxsize=64)
def _table(source: str) -> tuple[Rule, ...]:
    return read(source)
