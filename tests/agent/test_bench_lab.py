"""The instrument of a benchmark with real workers: warming up, a fault, and what comes after it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent.bench_agents import Agent, Kind
from agent.bench_lab import Care, MachineLab, NotTimed, compiled_alike
from agent.bench_plan import Selection, make_plan
from atrex.candidate import Candidate
from atrex.judge import Engine
from atrex.problem import load_problem
from atrex.roofline import load_hardware

HARDWARE = load_hardware("H200")  # bounds need some machine; which one does not matter here
(PLAN,) = make_plan(Selection(ops=("rms_norm",), cases=2, scale="small"))
EXITS = """\
import os, torch

class Model(torch.nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()

    def forward(self, x, weight):
        os._exit(0)
"""


@pytest.fixture(scope="module")
def lab(engine: Engine) -> Iterator[MachineLab]:
    made = MachineLab(engine, HARDWARE, None, cores=4)
    yield made
    made.release("rms_norm")  # others' tests count the workers of this engine


def kernel_of(kind: Kind) -> Candidate:
    kernel = Agent(kind).kernel("rms_norm")
    assert isinstance(kernel, Candidate)
    return kernel


def eager() -> Candidate:
    return kernel_of("eager")


def test_several_are_warmed_up_side_by_side(lab: MachineLab) -> None:
    broken = Candidate("rms_norm", "torch", EXITS)
    lab.warm(
        [(eager(), PLAN.cases), (broken, PLAN.cases)], lambda: False
    )  # a fault says so only when it is timed
    (timing,) = lab.time([eager()], PLAN.cases[0], Care())
    assert timing.latency.median_us > 0
    lab.release("rms_norm")
    assert not list(lab.engine.scratch.glob(f"{eager().id[:16]}*"))


def test_warming_up_keeps_the_extents_that_are_compiled_for() -> None:
    (plan,) = make_plan(Selection(ops=("rms_norm",)))
    problem = load_problem("rms_norm")
    for case in plan.cases:
        full, warm = problem.shape(case), compiled_alike(problem, case)
        assert warm is not None
        assert warm.dims["hidden_size"] == full.dims["hidden_size"]
        assert warm.dims["token_count"] == min(full.dims["token_count"], 37)


def test_a_fault_names_the_culprit_and_the_next_timing_starts_afresh(lab: MachineLab) -> None:
    broken = Candidate("rms_norm", "torch", EXITS)
    with pytest.raises(NotTimed, match="exited") as caught:
        lab.time([eager(), broken], PLAN.cases[0], Care(held=True, stranger=True))
    assert caught.value.candidate == broken.id
    ours, theirs = lab.time([kernel_of("library"), eager()], PLAN.cases[1], Care(held=True))
    assert ours.ratio_to(theirs).median > 0
    lab.release("rms_norm")


def test_a_judge_sees_all_gates_of_a_level(lab: MachineLab) -> None:
    judgement = lab.judge(Candidate("rms_norm", "torch", EXITS), PLAN.cases, "screen", 1)
    assert not judgement.accepted
    assert judgement.level == "screen"
