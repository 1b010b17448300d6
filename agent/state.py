"""The state of a search: a pure fold over its events.

Nothing is known that no event says, so a search that was killed goes on from its recorded events as if
nothing had happened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from types import MappingProxyType

from agent.buckets import Grid
from agent.dropout import Item
from agent.events import (
    ALL_CASES,
    Compared,
    DropoutEnded,
    DropoutStarted,
    Event,
    Finding,
    Finished,
    Judged,
    Measured,
    Missed,
    Move,
    Outcome,
    Profiled,
    Promoted,
    Proposal,
    RunStarted,
    Settled,
)
from agent.lab import Config, Tunables
from atrex.candidate import Candidate
from atrex.records import Bound, Judgement, Ratio
from atrex.spending import Spending

WON: tuple[Finding, ...] = ("promoted", "nominated", "advanced")
OPEN: tuple[Finding, ...] = ("suspect", "untested")
"""Findings after which the configuration itself has still to be tried."""

Key = tuple[str, str, str]
_sorted_json = json.JSONEncoder(sort_keys=True).encode


def config_key(kernel: str, bucket: str, config: Config) -> Key:
    """Identity of a configuration of a kernel in a bucket, whatever the order of its tunables."""
    return kernel, bucket, _sorted_json(config)


@dataclass(frozen=True, slots=True)
class Attempt:
    """The memory of one move, or of a whole kernel: what was expected of it and what came."""

    step: int
    kernel: str
    base: str
    bucket: str
    config: Config
    change: str
    techniques: tuple[str, ...]
    predicted: float
    finding: Finding
    realised: Ratio | None
    reason: str

    @property
    def key(self) -> Key:
        """What was tried, and where."""
        return config_key(self.kernel, self.bucket, self.config)

    @property
    def name(self) -> str:
        """Unique in a run."""
        return f"{self.step:05d} {self.bucket}"


@dataclass(frozen=True, slots=True)
class Lesson:
    """A configuration that the gates found wrong; never hidden, never tried again."""

    kernel: str
    bucket: str
    config: Config
    reason: str

    @property
    def key(self) -> Key:
        """What is ruled out, and where."""
        return config_key(self.kernel, self.bucket, self.config)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A move of a wrong candidate that must be tried alone to know which move was at fault."""

    kernel: str
    move: Move

    @property
    def key(self) -> Key:
        """What is suspected, and where."""
        return config_key(self.kernel, self.move.bucket, self.move.config)


@dataclass(frozen=True, slots=True)
class Belief:
    """How a technique has done so far."""

    tried: int = 0
    gains: int = 0
    wrong: int = 0
    log_gain: float = 0.0
    """Sum of ln(speed-up) over the gains."""

    def updated(self, outcome: Outcome) -> Belief:
        """This belief after one more outcome."""
        won = outcome.finding in WON
        realised = math.log(outcome.realised.median) if won and outcome.realised else 0.0
        return Belief(
            self.tried + 1,
            self.gains + won,
            self.wrong + (outcome.finding == "wrong"),
            self.log_gain + realised,
        )


@dataclass(frozen=True, slots=True)
class Episode:
    """A dropout episode in progress."""

    p: float
    hidden: frozenset[Item]
    ancestor: str
    head: str
    """Where the next proposal starts from: the ancestor, then its best descendant."""
    steps: int = 0
    found: bool = False


@dataclass(frozen=True, slots=True)
class SearchState:
    """All that a search knows. Build it with `fold`."""

    run: RunStarted
    elapsed: float = 0.0
    step: int = 0
    """Proposals so far; a merge belongs to the proposal whose moves it merges."""
    proposals: Mapping[str, Proposal] = field(default_factory=lambda: MappingProxyType({}))
    """Every candidate by id, as it was first proposed: the lineage."""
    accepted: tuple[str, ...] = ()
    """Ids of the candidates that passed every gate they have met."""
    timed: tuple[str, ...] = ()
    """Ids of candidates that were timed, in order; those of a tuner's moves may not have met a gate."""
    times_us: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: MappingProxyType({}))
    """The last median by case id of each candidate that was timed."""
    incumbent: str = ""
    latency_us: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """The incumbent's median by case id."""
    bounds: Mapping[str, Bound] = field(default_factory=lambda: MappingProxyType({}))
    kernels: Mapping[str, Tunables] = field(default_factory=lambda: MappingProxyType({}))
    """Tunables of each kernel that was proposed as a whole and has any."""
    attempts: tuple[Attempt, ...] = ()
    lessons: tuple[Lesson, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    beliefs: Mapping[str, Belief] = field(default_factory=lambda: MappingProxyType({}))
    stall: int = 0
    """Moves in a row, outside dropout, that brought no promotion."""
    p: float = 0.0
    """Share that the next dropout draw hides."""
    episodes: int = 0
    episode: Episode | None = None
    barren: int = 0
    """Episodes in a row that ended without a single proposal."""
    notes: tuple[str, ...] = ()
    objection: Judgement | None = None
    """The judgement on the last candidate that was judged, if it was not accepted."""
    spent: Spending = field(default_factory=Spending)
    """On models."""
    answers: int = 0
    """Of models."""
    profile: Profiled | None = None
    """Of the candidate that was the incumbent last time."""
    wrong: frozenset[str] = frozenset()
    """Candidates that a gate rejected."""
    current: Proposal | None = None
    """The proposal being tried."""
    finished: str | None = None

    @property
    def grid(self) -> Grid:
        """The buckets of this run."""
        return Grid(self.run.buckets)

    @property
    def base(self) -> str:
        """Id of the candidate that the next proposal changes."""
        return self.episode.head if self.episode else self.incumbent

    def candidate(self, name: str) -> Candidate:
        """The candidate with this id. Raises KeyError."""
        return self.run.start if name == self.run.start.id else self.proposals[name].candidate

    def kernel(self, name: str) -> str:
        """Name of the kernel that a candidate is a table of; empty for a start that is none of them."""
        return self.proposals[name].kernel if name in self.proposals else ""

    @property
    def archive(self) -> tuple[str, ...]:
        """Ids of what a search may go on from: accepted, or timed and not known to be wrong."""
        fit = (name for name in self.timed if name not in self.wrong and name in self.proposals)
        return tuple(dict.fromkeys((*self.accepted, *fit)))

    @property
    def best(self) -> Candidate:
        """The incumbent."""
        return self.candidate(self.incumbent)

    def apply(self, event: Event) -> SearchState:
        """The state after one more event; pure."""
        return replace(self._after(event), elapsed=event.elapsed)

    def _after(self, event: Event) -> SearchState:
        match event:
            case Measured():
                medians = {case: latency.median_us for case, latency in event.latencies.items()}
                return replace(self, latency_us=medians, bounds=event.bounds)
            case Proposal():
                return self._proposed(event)
            case Profiled():
                return replace(self, profile=event)
            case Missed():
                return self._missed(event)
            case Judged():
                others = tuple(name for name in self.accepted if name != event.candidate)
                passed = (event.candidate,) if event.judgement.accepted else ()
                objection = None if passed else event.judgement
                wrong = self.wrong if passed else self.wrong | {event.candidate}
                return replace(self, accepted=others + passed, objection=objection, wrong=wrong)
            case Compared():
                return self._compared(event)
            case Promoted():
                return self._promoted(event)
            case Settled():
                return self._settled(event)
            case DropoutStarted():
                hidden = frozenset(event.hidden)
                episode = Episode(event.p, hidden, event.ancestor, event.ancestor)
                return replace(self, episode=episode, episodes=self.episodes + 1)
            case DropoutEnded():
                return self._restored(event)
            case Finished():
                return replace(self, finished=event.reason)
            case _:
                return self

    def _proposed(self, event: Proposal) -> SearchState:
        name = event.candidate.id
        spent = self.spent + event.spent
        answers = self.answers + (event.origin == "model")
        proposals = {name: event, **self.proposals}
        state = replace(self, proposals=proposals, spent=spent, answers=answers, finished=None)
        if event.origin == "merge":
            return state
        if event.tunables:
            state = replace(state, kernels={**self.kernels, event.kernel: event.tunables})
        episode = state.episode and replace(state.episode, steps=state.episode.steps + 1)
        return replace(state, step=self.step + 1, current=event, episode=episode)

    def _compared(self, event: Compared) -> SearchState:
        if event.fault:
            return self
        name, seen = event.candidate, {case: each.candidate_us for case, each in event.comparisons.items()}
        timed = self.timed if name in self.timed else (*self.timed, name)
        times = {**self.times_us, name: {**self.times_us.get(name, {}), **seen}}
        return replace(self, timed=timed, times_us=times)

    def _missed(self, event: Missed) -> SearchState:
        step = self.step + 1
        whole = Move(bucket=ALL_CASES, config={}, change=event.because, techniques=(), predicted=1.0)
        attempt = _memory(
            step, "", self.base, whole, Outcome(bucket=ALL_CASES, finding="missed", reason=event.reason)
        )
        episode = self.episode and replace(self.episode, steps=self.episode.steps + 1)
        return replace(
            self,
            step=step,
            spent=self.spent + event.spent,
            answers=self.answers + 1,
            attempts=(*self.attempts, attempt),
            episode=episode,
            stall=self.stall + (episode is None),
            finished=None,
        )

    def _promoted(self, event: Promoted) -> SearchState:
        if event.role == "head":
            return replace(self, episode=self.episode and replace(self.episode, head=event.candidate))
        episode = self.episode and replace(self.episode, found=True)
        latency = {**self.latency_us, **event.latency_us}
        return replace(self, incumbent=event.candidate, latency_us=latency, episode=episode)

    def _settled(self, event: Settled) -> SearchState:
        proposal = self.current
        if proposal is None or proposal.candidate.id != event.candidate:
            raise ValueError(f"settled {event.candidate[:12]}, which was not being tried")
        attempts = tuple(_attempt(self.step, proposal, outcome) for outcome in event.outcomes)
        closed = {attempt.key for attempt in attempts}
        moves = {move.bucket: move for move in proposal.moves}
        won = any(outcome.finding == "promoted" for outcome in event.outcomes)
        wrong = any(outcome.finding == "wrong" for outcome in event.outcomes)
        counts = proposal.origin in ("move", "model") and self.episode is None
        return replace(
            self,
            current=None,
            accepted=tuple(name for name in self.accepted if not wrong or name != event.candidate),
            wrong=self.wrong | {event.candidate} if wrong else self.wrong,
            attempts=(*self.attempts, *attempts),
            lessons=(
                *self.lessons,
                *(Lesson(a.kernel, a.bucket, a.config, a.reason) for a in attempts if a.finding == "wrong"),
            ),
            suspects=(
                *(suspect for suspect in self.suspects if suspect.key not in closed),
                *(Suspect(a.kernel, moves[a.bucket]) for a in attempts if a.finding == "suspect"),
            ),
            beliefs=_learned(self.beliefs, moves, event.outcomes),
            stall=0 if won else self.stall + counts,
        )

    def _restored(self, event: DropoutEnded) -> SearchState:
        episode = self.episode
        if episode is None:
            raise ValueError("dropout ended that had not started")
        p = self.run.dropout.p if event.found else self.run.dropout.grown(episode.p)
        return replace(
            self,
            episode=None,
            p=p,
            stall=0,
            barren=0 if episode.steps else self.barren + 1,
            notes=(*self.notes, *event.notes),
        )


def fold(events: Iterable[Event]) -> SearchState:
    """The state after these events, the first of which is a `RunStarted`. Raises ValueError if it is not."""
    stream = iter(events)
    first = next(stream, None)
    if not isinstance(first, RunStarted):
        raise ValueError("the events of a search begin with run_started")
    start = SearchState(
        first,
        incumbent=first.start.id,
        p=first.dropout.p,
        elapsed=first.elapsed,
        accepted=() if first.judged_seconds is None else (first.start.id,),
    )
    return reduce(SearchState.apply, stream, start)


def _attempt(step: int, proposal: Proposal, outcome: Outcome) -> Attempt:
    move = next((move for move in proposal.moves if move.bucket == outcome.bucket), None)
    names = (proposal.technique,) if proposal.technique else ()
    whole = Move(
        bucket=ALL_CASES, config={}, change=proposal.title, techniques=names, predicted=proposal.predicted
    )
    return _memory(step, proposal.kernel, proposal.base, move or whole, outcome)


def _memory(step: int, kernel: str, base: str, move: Move, outcome: Outcome) -> Attempt:
    return Attempt(
        step,
        kernel,
        base,
        move.bucket,
        move.config,
        move.change,
        move.techniques,
        move.predicted,
        outcome.finding,
        outcome.realised,
        outcome.reason,
    )


def _learned(
    beliefs: Mapping[str, Belief], moves: Mapping[str, Move], outcomes: Iterable[Outcome]
) -> dict[str, Belief]:
    after = dict(beliefs)
    for outcome in outcomes:
        if outcome.bucket in moves and outcome.finding not in (*OPEN, "unjudged"):
            for technique in moves[outcome.bucket].techniques:
                after[technique] = after.get(technique, Belief()).updated(outcome)
    return after
