"""Uniform random search: the baseline that shows whether choosing moves is worth anything.

Whole kernels, and suspects of a wrong candidate, are proposed as `search` does it, and as many buckets move
at once; only which configuration a bucket tries is left to chance.
"""

from __future__ import annotations

import itertools
import math
import random

from agent import dispatch
from agent.buckets import Bucket, compose, configs_in
from agent.context import BucketDiagnosis, Context
from agent.events import Move, Proposal
from agent.lab import Config
from agent.proposers.moves import EVEN_CHANCE
from agent.proposers.search import SearchProposer, tried_in
from agent.state import OPEN, Key, config_key


class RandomProposer:
    """Draws configurations uniformly from those that a bucket has not tried; none is drawn twice."""

    name = "random"

    def __init__(self) -> None:
        self._search = SearchProposer()

    def propose(self, context: Context, /) -> Proposal | None:
        """Return an untried kernel, a suspect alone, or a random configuration for some buckets.

        None when every bucket has tried every configuration. Raises UsageError as `SearchProposer`.
        """
        tried = tried_in(context)
        unseen = any(kernel.name not in context.seen for kernel in context.knowledge.kernels)
        if unseen or any(s.kernel == context.base_kernel and s.key not in tried for s in context.suspects):
            return self._search.propose(context)
        if not context.tunables or not dispatch.tunable(context.base.source):
            return None
        rng = random.Random(f"{context.seed}/{context.step}")
        options = {d.bucket: left for d in context.diagnoses if (left := _untried(context, d, tried))}
        chosen = rng.sample(list(options), min(len(options), _together(context)))
        return _proposal(context, {b: rng.choice(options[b]) for b in chosen}) if chosen else None


def _untried(context: Context, diagnosis: BucketDiagnosis, tried: set[Key]) -> list[Config]:
    """Every combination of the tunables that the bucket has not tried and does not use now."""
    table = dispatch.read(context.base.source, context.base_kernel)
    inside = configs_in(table, context.grid, diagnosis.cases)
    name, kernel = diagnosis.bucket.name, context.base_kernel
    closed = tried | ({config_key(kernel, name, inside[0])} if len(inside) == 1 else set())
    known = {tunable: values for tunable, values in context.tunables.items() if tunable in inside[0]}
    combinations = itertools.product(*known.values())
    configs = [{**inside[0], **dict(zip(known, values, strict=True))} for values in combinations]
    return [config for config in configs if config_key(kernel, name, config) not in closed]


def _together(context: Context) -> int:
    """How many moves, each as risky as those so far, leave a candidate an even chance of being right."""
    moves = [a for a in context.attempts if a.config and a.finding not in OPEN]
    risk = (sum(a.finding == "wrong" for a in moves) + 0.1) / (len(moves) + 2)
    return max(1, math.floor(math.log(EVEN_CHANCE) / math.log(1 - risk)))


def _proposal(context: Context, drawn: dict[Bucket, Config]) -> Proposal:
    moves = tuple(_move(bucket, config) for bucket, config in drawn.items())
    note = "; ".join(f"{move.bucket}: {move.change}" for move in moves)
    return Proposal(
        origin="move",
        candidate=compose(context.base, context.grid, drawn, note),
        base=context.base.id,
        kernel=context.base_kernel,
        moves=moves,
        because="drawn uniformly",
    )


def _move(bucket: Bucket, config: Config) -> Move:
    change = ", ".join(f"{name} {value}" for name, value in config.items())
    return Move(bucket=bucket.name, config=config, change=change, techniques=("random",), predicted=1.0)
