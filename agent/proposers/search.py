"""The `search` proposer: no model and no network, and the baseline that every model must beat.

It proposes each retrieved reference kernel as it was shipped, then moves through the declared tunables of
the best one, bucket by bucket. Buckets are independent, so one candidate carries one move in each of
several buckets; every case is compared on its own, so each move is decided on its own.

Moves are chosen by expected improvement under a Gaussian process over the tunables (`surrogate`): first
where nothing near has been timed, then around what was fast, in this bucket or in neighbouring ones. A move
is only timed; when the best of what was timed goes before the gates is the loop's to say (`agent.search`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from agent import dispatch
from agent.buckets import compose
from agent.context import Context
from agent.events import Move, Proposal
from agent.lab import Config, ReferenceKernel
from agent.proposers.moves import Place, known_configs, move_to, open_configs, saved, together
from agent.proposers.surrogate import Surrogate, Timing, improvement
from agent.state import OPEN, Key

TIES = 0.1  # share of a score that chance decides: where all is unknown, other seeds begin elsewhere


@dataclass(frozen=True, slots=True)
class Option:
    """A move that could be made, and what it promises."""

    move: Move
    score: float
    """Expected improvement on the best that was timed, as ln(speed-up)."""


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
        wrong = {lesson.key for lesson in context.lessons}
        for suspect in context.suspects:  # that it has been timed says nothing about whether it is right
            if suspect.kernel == context.base_kernel and suspect.key not in wrong:
                return _moves(context, [suspect.move], "one of several moves in a wrong candidate, alone")
        options = _best(context, tried)
        moves = together([o.move for o in options], context.base_kernel, context.lessons, context.beliefs)
        return _moves(context, moves, "expected improvement") if moves else None


def _seed(context: Context, kernel: ReferenceKernel) -> Proposal:
    candidate = kernel.candidate(context.operator)
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
        predicted=saved(context.diagnoses, moves),
        because=because,
    )


def tried_in(context: Context) -> set[Key]:
    """Configurations that have had their answer, wrong ones that dropout cannot hide among them."""
    attempts = {attempt.key for attempt in context.attempts if attempt.finding not in OPEN}
    return attempts | {lesson.key for lesson in context.lessons}


def _best(context: Context, tried: set[Key]) -> list[Option]:
    """The untried move of each bucket that promises most, most promising bucket first."""
    rng = random.Random(f"{context.seed}/{context.step}")
    table = dispatch.read(context.base.source, context.base_kernel)
    known = known_configs(context, table)
    places = [Place.of(context, diagnosis, table) for diagnosis in context.diagnoses]
    timings = _timings(context, places)
    surrogate = Surrogate(context.tunables, timings)
    found = []
    for place in places:
        fastest, gain = _fastest(surrogate, place, timings, context.base.id)
        configs = open_configs(context, place, [fastest], known, tried, rng)
        if configs:
            config, score, predicted = _choose(surrogate, place, configs, context.base.id, gain, rng)
            found.append(Option(move_to(config, place, known, predicted), score))
            # the next bucket, which is expected to be alike, then tries something else
            surrogate.imagine(place.diagnosis.bucket, config, context.base.id)
    rank = {d.bucket.name: d.recoverable_us for d in context.diagnoses}
    return sorted(found, key=lambda option: -option.score * rank[option.move.bucket])


def _timings(context: Context, places: Sequence[Place]) -> list[Timing]:
    """All timings of this kernel that the context shows, and that the base is as fast as itself."""
    buckets = {place.diagnosis.bucket.name: place.diagnosis.bucket for place in places}
    wrong = {lesson.key for lesson in context.lessons}  # however fast
    known = [
        Timing.of(buckets[a.bucket], a.config, a.base, a.realised)
        for a in context.attempts
        if a.realised and a.kernel == context.base_kernel and a.bucket in buckets and a.key not in wrong
    ]
    return known + [Timing.itself(place.diagnosis.bucket, place.now, context.base.id) for place in places]


def _fastest(
    surrogate: Surrogate, place: Place, timings: Sequence[Timing], base: str
) -> tuple[Config, float]:
    """Of what was timed in a bucket, what is believed to be the fastest; and its ln(speed-up)."""
    bucket = place.diagnosis.bucket
    seen = list({str(t.config): t.config for t in timings if t.bucket == bucket}.values())
    gains = surrogate.expect(bucket, seen, base).mean.tolist()
    return seen[gains.index(max(gains))], max(gains)


def _choose(
    surrogate: Surrogate,
    place: Place,
    configs: list[Config],
    base: str,
    best: float,
    rng: random.Random,
) -> tuple[Config, float, float]:
    """What is expected to improve most on the best that was timed, by how much; and its speed-up."""
    expected = surrogate.expect(place.diagnosis.bucket, configs, base)
    scores = [score * (1 + TIES * rng.random()) for score in improvement(expected, best).tolist()]
    chosen = scores.index(max(scores))
    gain = float(improvement(expected, 0.0)[chosen])
    return configs[chosen], scores[chosen], min(math.exp(gain), place.diagnosis.headroom)
