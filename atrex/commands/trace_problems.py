"""What `atrex trace` asks of our problems and of the roofline: traces know neither."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from atrex.commands.trace_files import known_hardware
from atrex.errors import UsageError
from atrex.problem import load_problem
from atrex.records import Bound, Case, InitValue
from atrex.roofline import bound, load_calibration
from traces.report import Roofline

Init = Mapping[str, InitValue]
Input = Mapping[str, Any]


def _case(operator: str, init: Init, input: Input) -> Case:
    return Case(
        operator=operator, id=operator, init=dict(init), input=dict(input), phase="prefill", weight=0.0
    )


def identify(operator: str, init: Init, input: Input) -> str:
    """A shape's name that does not hang on how a workload states it: defaults and derived extents are in it.

    Raises UsageError for a case that the problem refuses.
    """
    problem = load_problem(operator)
    if complaint := problem.complaint(_case(operator, init, input)):
        raise UsageError(f"{operator}: {complaint}")
    shape = problem.full(problem.shape_of(dict(init), dict(input)))
    return json.dumps(shape.model_dump(mode="json"), sort_keys=True)


def rooflines() -> Roofline:
    """Rooflines of legal cases by the name of the hardware; None on hardware that no file describes."""
    calibration = cache(lambda name: load_calibration(name, "cuda"))

    def find(hardware: str, operator: str, init: Init, input: Input) -> Bound | None:
        known = known_hardware(hardware)
        if known is None:
            return None
        problem = load_problem(operator)
        cost = problem.cost(problem.shape_of(dict(init), dict(input)))
        return bound(cost, known, calibration(known.name))

    return find
