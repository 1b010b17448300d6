"""Shapes that a search never saw: does a champion's speed hold between the cases it was picked on?"""

from __future__ import annotations

import random
from collections.abc import Sequence

from atrex.problem import Problem
from atrex.records import Case

COUNT = 3


def hidden_cases(problem: Problem, cases: Sequence[Case], seed: int) -> tuple[Case, ...]:
    """The heaviest cases of different sizes with 60 to 98 % of their rows, drawn from the seed.

    Empty for an operator without independent rows, or whose cases do not name their number.
    """
    rows, rng = problem.rows, random.Random(f"{seed}/hidden")
    if rows is None:
        return ()
    legal, known = problem.spec.dims[rows], {case.input.get(rows) for case in cases}
    found = dict[int, Case]()
    for case in sorted(cases, key=lambda each: (-each.weight, each.id)):
        extent = case.input.get(rows)
        if not isinstance(extent, int) or len(found) == COUNT:
            continue
        fewer = round(extent * rng.uniform(0.6, 0.98))
        if extent not in found and fewer not in known and legal.legal(fewer) and fewer > 0:
            changed = {**case.input, rows: fewer}
            found[extent] = case.model_copy(
                update={"id": f"{case.id} with {rows}={fewer}", "input": changed, "weight": 0.0}
            )
    return tuple(found.values())
