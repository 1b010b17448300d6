"""Hidden shapes: legal, near the cases, and none of them."""

from __future__ import annotations

import pytest

from agent.hidden import COUNT, hidden_cases
from atrex.problem import load_problem, operators
from traces.workload import load_workload


@pytest.mark.parametrize("operator", operators())
def test_hidden_shapes_are_legal_and_new(operator: str) -> None:
    problem, cases = load_problem(operator), load_workload("atrex-bench").cases(operator)
    found = hidden_cases(problem, cases, seed=1)
    if problem.rows is None:
        assert found == ()
        return
    known = {problem.shape(case).model_dump_json() for case in cases}
    assert len(found) <= COUNT
    for case in found:
        assert not problem.complaint(case)
        assert problem.shape(case).model_dump_json() not in known
        assert case.weight == 0.0


def test_they_follow_from_the_seed() -> None:
    problem, cases = load_problem("rms_norm"), load_workload("atrex-bench").cases("rms_norm")
    assert len(hidden_cases(problem, cases, 1)) == COUNT
    assert hidden_cases(problem, cases, 1) == hidden_cases(problem, cases, 1)
    assert hidden_cases(problem, cases, 1) != hidden_cases(problem, cases, 2)
