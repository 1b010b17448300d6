"""Which cases a command-line agent sees, and which it is judged on without having seen them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from atrex.records import Case


def split(cases: Sequence[Case], seed: int, share: float) -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Visible and hidden cases, each in the order given; about `share` of them is hidden.

    The cases are ordered by phase and weight and cut into as many strata as there are to hide; a seeded draw
    takes one of each, so heavy and light ones are hidden alike. The draw depends on the set of cases and the
    seed alone. One case at least is hidden (unless there is but one, or the share is 0), and one is not.
    """
    if not 0 <= share < 1:
        raise ValueError(f"a share of the cases to hide lies in [0, 1), not {share}")
    count = min(max(1, round(share * len(cases))), len(cases) - 1) if share and len(cases) > 1 else 0
    order = sorted(cases, key=lambda case: (case.phase, -case.weight, case.id))
    dice = random.Random(f"hidden cases/{seed}")
    edges = [i * len(order) // count for i in range(count + 1)] if count else []
    hidden = {dice.choice(order[low:high]).id for low, high in pairwise(edges)}
    return tuple(c for c in cases if c.id not in hidden), tuple(c for c in cases if c.id in hidden)
