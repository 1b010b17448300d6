"""Which cases a command-line agent sees, and which it is judged on without having seen them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from atrex.problem import Init, Input, Problem
from atrex.records import Case

OFF_GRID = 6  # hidden shapes beyond those of production
FIRST_NUMBER = 1000  # of such a shape, so that its id is none of production's
_EXTENTS = (1, 3, 7, 13, 31, 65, 127, 257, 509, 1021, 2049)
_MOST_ELEMENTS = 1 << 24  # of the largest tensor: these shapes are about edges, not about size


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


def off_grid(problem: Problem, cases: Sequence[Case], seed: int, count: int = OFF_GRID) -> tuple[Case, ...]:
    """Up to `count` legal shapes off the production grid, of weight 0 and in an order of the seed's.

    They are drawn from those that the problem names; where it names none, the free extents of a production
    case are replaced by odd ones. `cases` are production's, for their constructor arguments and phase.
    """
    dice = random.Random(f"off the grid/{seed}")
    named = list(getattr(problem.module, "ODD", ())) or _odd_extents(problem, cases, dice)
    dice.shuffle(named)
    first = max([FIRST_NUMBER, *(1 + int(case.id.rpartition("-")[2]) for case in cases)])
    found = list[Case]()
    for number, (init, input) in enumerate(named, first):
        case = Case(
            operator=problem.operator,
            id=f"{problem.operator}-{number}",
            init=dict(init),
            input=dict(input),
            phase=cases[0].phase,
            weight=0.0,
        )
        if not problem.complaint(case) and problem.elements(problem.shape(case)) <= _MOST_ELEMENTS:
            found.append(case)
    return tuple(found[:count])


def _odd_extents(problem: Problem, cases: Sequence[Case], dice: random.Random) -> list[tuple[Init, Input]]:
    shapes = list[tuple[Init, Input]]()
    for _ in range(4 * OFF_GRID):
        case = dice.choice(cases)
        extents: dict[str, object] = {n: dice.choice(_EXTENTS) for n in problem.spec.dims if n in case.input}
        if isinstance(whole := case.input.get("shape"), list):
            extents["shape"] = [dice.choice(_EXTENTS) for _ in whole]
        shapes.append((case.init, {**case.input, **extents}))
    return shapes
