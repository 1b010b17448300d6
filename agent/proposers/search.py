"""The `search` proposer: no model and no network, and the baseline that every model must beat.

It proposes each retrieved reference kernel as it was shipped, then moves through the declared tunables of
the best one, bucket by bucket. Buckets are independent, so one candidate carries one move in each of
several buckets; every case is compared on its own, so each move is decided on its own.

Moves are chosen by Thompson sampling over techniques: a technique is drawn by how often it has won and by
how much, so one that is unknown stays worth trying and one that keeps losing fades.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass

from agent import dispatch
from agent.buckets import compose, configs_in
from agent.context import BucketDiagnosis, Context, category
from agent.dispatch import Rule
from agent.events import Move, Proposal
from agent.lab import Config, ReferenceKernel
from agent.state import OPEN, WON, Belief, Key, config_key
from atrex.candidate import Candidate

EXPECTED_LOG_GAIN = 0.05  # of a technique that has not won yet: about 5 %
EVEN_CHANCE = 0.5  # that a candidate with moves in several buckets passes the gates
RISK_OF_A_LESSON = 0.75  # that a configuration which was wrong in one bucket is wrong in another
NOTHING_KNOWN = Belief()


@dataclass(frozen=True, slots=True)
class Option:
    """A move that could be made, and how it was drawn."""

    move: Move
    score: float
    """Sampled rate of success * size of a success, as ln(speed-up)."""
    risk: float
    """Estimated probability that the gates find it wrong."""


class SearchProposer:
    """Picks reference kernels and moves through their tunables."""

    name = "search"

    def propose(self, context: Context, /) -> Proposal | None:
        """Return an untried kernel, a suspect alone, or one move in each of several buckets.

        None when every move that the context shows has been tried. Raises UsageError if the dispatch table
        of the kernel to be varied is malformed.
        """
        if not context.hidden:
            for kernel in context.knowledge.kernels:
                if kernel.name not in context.seen:
                    return _seed(context, kernel)
        if not context.tunables or not dispatch.tunable(context.base.source):
            return None
        tried = tried_in(context)
        for suspect in context.suspects:
            if suspect.kernel == context.base_kernel and suspect.key not in tried:
                return _moves(context, [suspect.move], "one of several moves in a wrong candidate, alone")
        options = _draw(context, tried)
        return _moves(context, _together(options), "bandit over techniques") if options else None


def _seed(context: Context, kernel: ReferenceKernel) -> Proposal:
    candidate = Candidate(context.operator, kernel.dsl, kernel.source, note=f"kernel {kernel.name}")
    return Proposal(
        origin="seed",
        candidate=candidate,
        base=context.incumbent.id,
        kernel=kernel.name,
        tunables=kernel.tunables,
        because="reference kernel as shipped",
    )


def _moves(context: Context, moves: list[Move], because: str) -> Proposal:
    buckets = {d.bucket.name: d.bucket for d in context.diagnoses}
    note = "; ".join(f"{move.bucket}: {move.change}" for move in moves)
    candidate = compose(context.base, context.grid, {buckets[m.bucket]: m.config for m in moves}, note)
    return Proposal(
        origin="move",
        candidate=candidate,
        base=context.base.id,
        kernel=context.base_kernel,
        moves=tuple(moves),
        predicted=_saved(context, moves),
        because=because,
    )


def _saved(context: Context, moves: list[Move]) -> float:
    """Predicted speed-up of the whole workload, from the moves' own."""
    before = {d.bucket.name: d.median_us for d in context.diagnoses}
    after = before | {move.bucket: before[move.bucket] / move.predicted for move in moves}
    return sum(before.values()) / sum(after.values()) if sum(after.values()) > 0 else 1.0


def tried_in(context: Context) -> set[Key]:
    """Configurations that have had their answer, wrong ones that dropout cannot hide among them."""
    attempts = {attempt.key for attempt in context.attempts if attempt.finding not in OPEN}
    return attempts | {lesson.key for lesson in context.lessons}


def _draw(context: Context, tried: set[Key]) -> list[Option]:
    """The best-drawn untried move of each bucket, most promising bucket first."""
    rng = random.Random(f"{context.seed}/{context.step}")
    table = dispatch.read(context.base.source, context.base_kernel)
    known = _known_configs(context, table)
    best = []
    for diagnosis in context.diagnoses:
        options = [_weigh(context, diagnosis, m, rng) for m in _open(context, diagnosis, table, known, tried)]
        if options:
            best.append(max(options, key=lambda option: option.score))
    rank = {d.bucket.name: d.recoverable_us for d in context.diagnoses}
    return sorted(best, key=lambda option: -option.score * rank[option.move.bucket])


def _together(options: list[Option]) -> list[Move]:
    """As many moves, from the front, as leave the candidate an even chance of being right."""
    chosen, chance = [options[0].move], 1 - options[0].risk
    for option in options[1:]:
        if chance * (1 - option.risk) >= EVEN_CHANCE:
            chosen.append(option.move)
            chance *= 1 - option.risk
    return chosen


def _open(
    context: Context,
    diagnosis: BucketDiagnosis,
    table: tuple[Rule, ...],
    known: list[Config],
    tried: set[Key],
) -> Iterable[Move]:
    """Untried moves in one bucket: one tunable, or a whole configuration known to work elsewhere."""
    inside = configs_in(table, context.grid, diagnosis.cases)
    now = inside[0]  # of the case with the most time to recover
    name = diagnosis.bucket.name
    taken = tried | ({config_key(context.base_kernel, name, now)} if len(inside) == 1 else set())
    for tunable, values in context.tunables.items():
        for value in values:
            config = {**now, tunable: value}
            if tunable in now and value != now[tunable]:
                yield from _admit(context, name, config, now, taken)
    for config in known:
        if len(_changes(config, now)) != 1:
            yield from _admit(context, name, config, now, taken)


def _admit(context: Context, bucket: str, config: Config, now: Config, taken: set[Key]) -> Iterable[Move]:
    techniques = _techniques(config, now)
    new = config_key(context.base_kernel, bucket, config) not in taken
    if new and not context.hides("technique", techniques[0]):
        changes = _changes(config, now)
        change = ", ".join(f"{name} {now.get(name)} -> {config[name]}" for name in changes)
        change = change or "the same configuration for the whole bucket"
        yield Move(bucket=bucket, config=config, change=change, techniques=techniques, predicted=1.0)


def _known_configs(context: Context, table: tuple[Rule, ...]) -> list[Config]:
    """Configurations that the kernel's author or an earlier win vouches for, each once."""
    won = (a.config for a in context.attempts if a.kernel == context.base_kernel and a.finding in WON)
    found: list[Config] = []
    for config in (*(rule.config for rule in table), *won):
        if config and config not in found:
            found.append(config)
    return found


def _changes(config: Config, now: Config) -> list[str]:
    return [name for name in config if name not in now or config[name] != now[name]]


def _techniques(config: Config, now: Config) -> tuple[str, ...]:
    """Belief keys of a change: a variant with its companions, one tunable and its value, or a transfer."""
    changes = _changes(config, now)
    if "variant" in changes:
        return (category("variant", config["variant"]),)
    if len(changes) == 1:
        return (changes[0], f"{changes[0]}={config[changes[0]]}")
    return ("transfer",)


def _weigh(context: Context, diagnosis: BucketDiagnosis, move: Move, rng: random.Random) -> Option:
    beliefs = [context.beliefs.get(key, NOTHING_KNOWN) for key in move.techniques]
    draws = [rng.betavariate(1 + b.gains, 1 + b.tried - b.gains) for b in beliefs]
    size = _size(beliefs[0])
    predicted = min(math.exp(_rate(beliefs[0]) * size), diagnosis.headroom)
    sampled = math.prod(draws) ** (1 / len(draws)) * size
    return Option(move.model_copy(update={"predicted": predicted}), sampled, _risk(context, move, beliefs))


def _rate(belief: Belief) -> float:
    """Expected rate of success, from a uniform prior."""
    return (1 + belief.gains) / (2 + belief.tried)


def _size(belief: Belief) -> float:
    """Expected ln(speed-up) of a success."""
    return (belief.log_gain + EXPECTED_LOG_GAIN) / (belief.gains + 1)


def _risk(context: Context, move: Move, beliefs: list[Belief]) -> float:
    """Estimated probability that the move is wrong: 5 % for a technique never tried."""
    key = config_key(context.base_kernel, move.bucket, move.config)
    wrong_elsewhere = any((lesson.key[0], lesson.key[2]) == (key[0], key[2]) for lesson in context.lessons)
    rates = [(belief.wrong + 0.1) / (belief.tried + 2) for belief in beliefs]
    return max(RISK_OF_A_LESSON if wrong_elsewhere else 0.0, *rates)
