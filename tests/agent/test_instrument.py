"""Where the machine fails while something is timed, a run goes on, and the kernel is not blamed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from rich.console import Console

from agent import final
from agent.instrument import Instrument
from agent.lab import TimingFault
from agent.proposers.baselines import eager
from atrex.candidate import Candidate
from atrex.judge import CandidateFault, Engine, HarnessError
from atrex.measure import Protocol, Timing, protocol_for
from atrex.problem import load_problem
from atrex.records import Case, FaultKind, Latency
from atrex.roofline import load_hardware
from traces.workload import load_workload

PROBLEM = load_problem("rms_norm")
CASES = tuple(PROBLEM.small(case) for case in load_workload().cases("rms_norm")[:2])
KERNEL = Candidate("rms_norm", "cpp", "# a kernel")
MACHINE: list[Callable[[], Exception]] = [
    lambda: HarnessError("OutOfMemoryError:\n no memory"),
    lambda: torch.OutOfMemoryError("no memory"),
    lambda: MemoryError("no memory"),
]


class Failing(Instrument):
    """Fails whenever it times."""

    failure: Callable[[], Exception]

    def time(
        self, candidates: Sequence[Candidate], case: Case, rules: Protocol | None = None
    ) -> list[Timing]:
        raise self.failure()


@pytest.fixture
def lab(engine: Engine) -> Failing:
    return Failing(
        engine, PROBLEM, load_hardware("H200"), None, protocol_for("cpu"), lambda _: Path("unused")
    )


@pytest.mark.parametrize("failure", MACHINE)
def test_the_machine_s_failure_is_none_of_the_candidate_s(
    lab: Failing, failure: Callable[[], Exception]
) -> None:
    lab.failure = failure
    for timed in (lambda: lab.compare(KERNEL, KERNEL, CASES), lambda: lab.measure(KERNEL, CASES)):
        with pytest.raises(TimingFault, match=r"^harness: .*no memory$") as raised:
            timed()
        assert raised.value.of_machine


def test_a_crash_is_the_candidate_s(lab: Failing) -> None:
    lab.failure = lambda: CandidateFault(FaultKind.ILLEGAL_ACCESS, "it crashed", KERNEL.id)
    with pytest.raises(TimingFault, match=r"^illegal access: it crashed$") as raised:
        lab.compare(KERNEL, KERNEL, CASES)
    assert not raised.value.of_machine


@pytest.mark.parametrize("failure", MACHINE)
def test_a_final_measurement_says_what_it_could_not_measure(
    lab: Failing, failure: Callable[[], Exception]
) -> None:
    lab.failure = failure
    found = final.measure(lab, eager(PROBLEM.spec), CASES, 5.0, 1, Console(quiet=True))
    assert [result.latency for result in found.results] == [None, None]
    assert all("the kernel not measured: harness: " in note for note in found.notes)
    assert len(found.notes) >= len(CASES)
    assert not found.doubt


class Wrong(Failing):
    """A champion of which one case's output is wrong, and then the hidden shapes'."""

    where = ""

    def time(
        self, candidates: Sequence[Candidate], case: Case, rules: Protocol | None = None
    ) -> list[Timing]:
        if self.where in case.id:
            raise CandidateFault(FaultKind.WRONG, "wrong output", candidates[0].id)
        latency = Latency(median_us=5.0, p10_us=5.0, p90_us=5.0, n=9, method="wall")
        return [Timing(latency, (5.0,) * 6) for _ in candidates]


@pytest.mark.parametrize("where", [CASES[1].id, "token_count="])
def test_a_champion_that_is_wrong_at_the_end_is_not_believed(engine: Engine, where: str) -> None:
    """On one of its cases, or on a shape that the search never saw: nothing of it counts."""
    lab = Wrong(engine, PROBLEM, load_hardware("H200"), None, protocol_for("cpu"), lambda _: Path("unused"))
    lab.where = where
    found = final.measure(lab, KERNEL, CASES, 5.0, 1, Console(quiet=True))
    assert where in found.doubt
    assert len(found.results) == len(CASES)
    assert not any(result.accepted or result.latency or result.vs_eager for result in found.results)
