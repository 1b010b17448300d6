"""Optimisation dropout: look away from what is known when it no longer helps.

A search that remembers everything keeps digging where it stands. When `patience` proposals in a row bring
no significant gain, a seeded draw hides a share of the context, stratum by stratum, and the search goes on
from an archived ancestor for `horizon` steps. A new best is adopted and the hidden part comes back as
notes; otherwise all is as before and the share grows. The problem, the contract and the correctness
lessons are never hidden: forgetting those would only repeat mistakes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from atrex.records import Record

Kind = Literal["problem", "contract", "lesson", "attempt", "passage", "technique", "belief", "parent"]

STRATA: tuple[Kind, ...] = ("attempt", "passage", "technique", "belief", "parent")
"""What may be hidden; each is drawn from on its own, so none is emptied for another."""
PROTECTED: tuple[Kind, ...] = ("problem", "contract", "lesson")


class Item(NamedTuple):
    """One thing that a proposer may see."""

    kind: Kind
    key: str


class DropoutPolicy(Record):
    """When to look away, how much to hide, and for how long."""

    enabled: bool = True
    patience: Annotated[int, Field(ge=1)] = 4
    """Proposals in a row without a promotion before a draw; and draws in a row that leave nothing to propose
    before the search is over."""
    p: Annotated[float, Field(ge=0, le=1)] = 0.3
    """Share of each stratum that the first draw hides."""
    growth: Annotated[float, Field(ge=1)] = 1.5
    """Factor on the share after an episode that found nothing."""
    p_max: Annotated[float, Field(ge=0, le=1)] = 0.6
    horizon: Annotated[int, Field(ge=1)] = 8
    """Proposals in one episode."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.p > self.p_max:
            raise ValueError(f"p {self.p} is above p_max {self.p_max}")
        return self

    def grown(self, p: float) -> float:
        """The share after a fruitless episode at `p`, at most p_max."""
        return min(self.p_max, p * self.growth)


def draw(items: Iterable[Item], p: float, seed: str) -> frozenset[Item]:
    """Choose the items to hide: of n in a stratum, p * n on average and never off by 1 or more.

    Pure: it depends on the set of items, not on their order. Protected kinds are never chosen.
    """
    rng = random.Random(seed)
    known = set(items)
    hidden = set[Item]()
    for kind in STRATA:
        stratum = sorted(item for item in known if item.kind == kind)
        exact = p * len(stratum)
        count = math.floor(exact) + (rng.random() < exact - math.floor(exact))
        hidden.update(rng.sample(stratum, count))
    return frozenset(hidden)


def ancestor(
    archive: Mapping[str, Collection[str]], hidden: frozenset[Item], incumbent: str, seed: str
) -> str:
    """Choose where an episode starts: an archived candidate that is neither hidden nor the incumbent.

    `archive` gives each candidate the techniques that made it. The technique is drawn first and then one
    of its candidates, so that the many descendants of a success do not crowd out what was tried once. If
    the draw hides all, any other archived one; with none at all, the incumbent itself.
    """
    others = sorted(set(archive) - {incumbent})
    pool = [name for name in others if Item("parent", name) not in hidden] or others
    if not pool:
        return incumbent
    rng = random.Random(f"{seed}/ancestor")
    technique = rng.choice(sorted({technique for name in pool for technique in archive[name]}))
    return rng.choice([name for name in pool if technique in archive[name]])
