"""The eager reference passes every gate but authenticity, which it must not: PyTorch computes there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.proposers.baselines import eager
from atrex.gates import GATE_NAMES
from atrex.judge import Engine
from atrex.problem import load_problem, operators
from atrex.records import Case, Status
from atrex.verify import Verifier
from traces.workload import load_workload


@pytest.fixture(scope="module")
def verifier(engine: Engine) -> Iterator[Verifier]:
    with Verifier(engine) as verifier:
        yield verifier


# Of different kinds, and quick to judge: CI has fifteen minutes for everything.
QUICK = (
    "rms_norm",
    "block_scaled_mm",
    "mla_decode_attention",
    "moe_topk_gating_softmax",
    "reshape_and_cache",
)


@pytest.mark.parametrize(
    "operator",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in operators()],
)
def test_one_case_at_the_screening(verifier: Verifier, operator: str) -> None:
    """The smallest, as a CPU takes it."""
    problem = load_problem(operator)
    cases = load_workload(operators=[operator]).cases(operator)
    _judge(
        verifier,
        operator,
        (min(cases, key=lambda case: problem.elements(problem.shape(problem.small(case)))),),
    )


@pytest.mark.slow
@pytest.mark.parametrize("operator", operators())
def test_every_case_at_the_screening(verifier: Verifier, operator: str) -> None:
    _judge(verifier, operator, load_workload(operators=[operator]).cases(operator))


def _judge(verifier: Verifier, operator: str, cases: tuple[Case, ...]) -> None:
    problem = load_problem(operator)
    judgement = verifier.judge(eager(problem.spec), cases, level="screen", keep_going=True)
    verdicts = {verdict.gate: verdict for verdict in judgement.verdicts}
    verdicts.pop("gradients", None)  # PyTorch's own backward, which nobody serves, is not what is controlled
    assert set(verdicts) == set(GATE_NAMES)
    assert verdicts.pop("authenticity").status is Status.FAIL
    bad = {name: v.reason for name, v in verdicts.items() if v.status is not Status.PASS}
    assert not bad
