"""Nominees: moves that won a comparison, and wait for a second one and for the gates.

The gates cost up to a hundred times a comparison. So a move is only timed at first, and what goes before the
gates is one candidate with the best move of every bucket, once timing has stopped to find better ones. All of
this is read off the state; `agent.search` says when a nomination is due, `agent.trial` what becomes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from agent import context
from agent.buckets import compose, configs_in
from agent.dispatch import Rule, read, tunable
from agent.events import ALL_CASES, Finding, Move, Proposal
from agent.lab import Config
from agent.proposers.moves import saved, together
from agent.state import OPEN, WON, Attempt, Key, SearchState
from atrex.records import Case

WAITING: tuple[Finding, ...] = ("nominated", "runner-up", "advanced")
"""Findings after which a move may be a nominee: one that advanced a dropout episode is, where the incumbent
uses what its base did."""


def nominees(state: SearchState) -> dict[str, tuple[Attempt, ...]]:
    """Moves that won against what the incumbent uses, by bucket, the fastest first."""
    kernel = state.kernel(state.incumbent)
    if not tunable(state.best.source):
        return {}
    waiting = dict[Key, Attempt]()
    for attempt in state.attempts:
        if attempt.bucket != ALL_CASES and attempt.kernel == kernel and attempt.finding not in OPEN:
            waiting.pop(attempt.key, None)
            if attempt.finding in WAITING:
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
    return {bucket: tuple(sorted(each, key=lambda a: -gain_of(a))) for bucket, each in found.items()}


def nominate(state: SearchState) -> Proposal | None:
    """The incumbent with the best nominee of every bucket that dare be together; None without any.

    Suspects of a wrong candidate are left out: the tuner proposes them alone.
    """
    suspects = {suspect.key for suspect in state.suspects}
    fit = {b: [a for a in each if a.key not in suspects] for b, each in nominees(state).items()}
    best = sorted((each[0] for each in fit.values() if each), key=lambda attempt: -gain_of(attempt))
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


def _move(attempt: Attempt) -> Move:
    return Move(
        bucket=attempt.bucket,
        config=attempt.config,
        change=attempt.change,
        techniques=attempt.techniques,
        predicted=gain_of(attempt),
    )


def gain_of(attempt: Attempt) -> float:
    """Its realised speed-up; 1 where none was measured."""
    return attempt.realised.median if attempt.realised else 1.0


def _used(state: SearchState, name: str, cases: Sequence[Case]) -> tuple[Config, ...]:
    """What a candidate uses in these cases; nothing, if its file has no table."""
    source = state.candidate(name).source
    return configs_in(_table(source), state.grid, cases) if tunable(source) else ()


@lru_cache(maxsize=64)
def _table(source: str) -> tuple[Rule, ...]:
    return read(source)
