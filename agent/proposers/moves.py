"""Moves through a kernel's tunables: what is open in a bucket, what it changes, how many go together."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.buckets import configs_in
from agent.context import BucketDiagnosis, Context, category
from agent.dispatch import Rule
from agent.events import Move
from agent.lab import Config, Tunables
from agent.state import WON, Belief, Key, Lesson, config_key

MOST_CONFIGS = 1000
"""A grid up to this size is looked at as a whole."""
NEAR = 2
"""Tunables in which neighbours differ: two of them may only help together."""
TRANSFER = "transfer"
EVEN_CHANCE = 0.5  # that a candidate with moves in several buckets passes the gates
RISK_OF_A_LESSON = 0.75  # that a configuration which was wrong in one bucket is wrong in another
NOTHING_KNOWN = Belief()


@dataclass(frozen=True, slots=True)
class Place:
    """A bucket as the base's table has it."""

    diagnosis: BucketDiagnosis
    now: Config
    """Of the case with the most time to recover."""
    uniform: bool
    """Whether all cases of the bucket use it."""

    @classmethod
    def of(cls, context: Context, diagnosis: BucketDiagnosis, table: Sequence[Rule]) -> Place:
        """The place of one bucket."""
        inside = configs_in(table, context.grid, diagnosis.cases)
        return cls(diagnosis, inside[0], len(inside) == 1)


def open_configs(
    context: Context,
    place: Place,
    anchors: Sequence[Config],
    known: Sequence[Config],
    tried: set[Key],
    rng: random.Random,
) -> list[Config]:
    """Untried configurations of one bucket: through the grid, or known to work elsewhere.

    A grid too large to be looked at is so around `anchors` and at random places.
    """
    kernel, bucket, now = context.base_kernel, place.diagnosis.bucket.name, place.now
    taken = tried | ({config_key(kernel, bucket, now)} if place.uniform else set())
    found = {config_key(kernel, bucket, c): c for c in (*known, *_reachable(context, now, anchors, rng))}
    untried = (config for key, config in found.items() if key not in taken)
    if not context.hidden:
        return list(untried)
    return [config for config in untried if not _hidden(context, config, now, known)]


def move_to(config: Config, place: Place, known: Sequence[Config], predicted: float) -> Move:
    """The move of a bucket to a configuration."""
    changes = [f"{name} {place.now.get(name)} -> {config[name]}" for name in _changes(config, place.now)]
    return Move(
        bucket=place.diagnosis.bucket.name,
        config=config,
        change=", ".join(changes) or "the same configuration for the whole bucket",
        techniques=_techniques(config, place.now, known),
        predicted=predicted,
    )


def known_configs(context: Context, table: Sequence[Rule]) -> list[Config]:
    """Configurations that the kernel's author or an earlier win vouches for, each once."""
    won = (a.config for a in context.attempts if a.kernel == context.base_kernel and a.finding in WON)
    found: list[Config] = []
    for config in (*(rule.config for rule in table), *won):
        if config and config not in found:
            found.append(config)
    return found


def together(
    moves: Sequence[Move], kernel: str, lessons: Sequence[Lesson], beliefs: Mapping[str, Belief]
) -> list[Move]:
    """As many moves, from the front, as leave a candidate an even chance of being right; one at least."""
    wrong = [lesson.config for lesson in lessons if lesson.kernel == kernel]
    chosen, chance = list[Move](), 1.0
    for move in moves:
        right = 1 - _risk(move, wrong, beliefs)
        if not chosen or chance * right >= EVEN_CHANCE:
            chosen.append(move)
            chance *= right
    return chosen


def _risk(move: Move, wrong: Sequence[Config], beliefs: Mapping[str, Belief]) -> float:
    """Estimated probability that the move is wrong: 5 % for a technique never tried."""
    known = [beliefs.get(technique, NOTHING_KNOWN) for technique in move.techniques]
    rates = [(belief.wrong + 0.1) / (belief.tried + 2) for belief in known]
    return max(RISK_OF_A_LESSON if move.config in wrong else 0.0, *rates)


def saved(diagnoses: Sequence[BucketDiagnosis], moves: Sequence[Move]) -> float:
    """Predicted speed-up of the whole workload, from the moves' own."""
    before = {d.bucket.name: d.median_us for d in diagnoses}
    after = before | {move.bucket: before[move.bucket] / move.predicted for move in moves}
    return sum(before.values()) / sum(after.values()) if sum(after.values()) > 0 else 1.0


def _reachable(
    context: Context, now: Config, anchors: Sequence[Config], rng: random.Random
) -> Iterable[Config]:
    """The grid or a part of it; in a dropout episode, which is to go on from its ancestor, what is near."""
    values = {tunable: values for tunable, values in context.tunables.items() if tunable in now}
    if context.base.id != context.incumbent.id:
        return _near(now, values)
    if math.prod(map(len, values.values())) <= MOST_CONFIGS:
        return ({**now, **dict(zip(values, c, strict=True))} for c in itertools.product(*values.values()))
    near = itertools.chain.from_iterable(_near(anchor, values) for anchor in (now, *anchors))
    far = ({**now, **{name: rng.choice(v) for name, v in values.items()}} for _ in range(MOST_CONFIGS))
    return itertools.chain(near, far)


def _near(config: Config, values: Tunables) -> Iterator[Config]:
    """Configurations that differ in at most NEAR tunables."""
    for names in itertools.combinations(values, min(NEAR, len(values))):
        for chosen in itertools.product(*(values[name] for name in names)):
            yield {**config, **dict(zip(names, chosen, strict=True))}


def _hidden(context: Context, config: Config, now: Config, known: Sequence[Config]) -> bool:
    return any(context.hides("technique", name) for name in _techniques(config, now, known))


def _changes(config: Config, now: Config) -> list[str]:
    return [name for name in config if name not in now or config[name] != now[name]]


def _techniques(config: Config, now: Config, known: Sequence[Config]) -> tuple[str, ...]:
    """Belief keys of a change: a variant with its companions, one tunable and its value, a transfer, or all
    tunables that change."""
    changes = _changes(config, now)
    if "variant" in changes:
        return (category("variant", config["variant"]),)
    if len(changes) == 1:
        return (changes[0], f"{changes[0]}={config[changes[0]]}")
    return (TRANSFER,) if config in known or not changes else tuple(changes)
