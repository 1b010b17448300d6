"""Gates beside one another: the same verdicts as in turn, and nothing of the neighbours in them."""

from __future__ import annotations

import threading
import time

import psutil
import pytest

from agent.proposers.baselines import eager
from atrex.candidate import Candidate
from atrex.gates import GATE_NAMES
from atrex.judge import CandidateFault, Engine, Stopped
from atrex.problem import load_problem
from atrex.protocol import Call, InputSpec
from atrex.records import FaultKind, Judgement, Status
from atrex.verify import Verifier
from traces.workload import load_workload

PROBLEM = load_problem("rms_norm")
CASES = [case for case in load_workload().cases("rms_norm") if case.id == "rms_norm-015"]
# Only one process at a time can have the lock, as only some can have a GPU's memory.
SHORT_OF_MEMORY = """
import fcntl

import torch
from bench.rms_norm.reference import reference

LOCK = open(torch.__file__)  # every lane has a scratch directory of its own


class Model(torch.nn.Module):
    def __init__(self, **init):
        super().__init__()
        self.init = init

    def forward(self, **inputs):
        try:
            fcntl.flock(LOCK, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise torch.OutOfMemoryError("another process has it") from None
        return reference({"epsilon": 1e-6, **self.init}, inputs)["out"]
"""


def judged(engine: Engine, candidate: Candidate, *, beside: bool, keep_going: bool = True) -> Judgement:
    with Verifier(engine, beside=beside) as verifier:
        return verifier.judge(candidate, CASES, level="screen", seed=5, keep_going=keep_going)


@pytest.mark.slow
def test_the_same_verdicts_in_the_same_order(engine: Engine) -> None:
    seen = list[str]()
    with Verifier(engine, beside=True) as verifier:
        ours = verifier.judge(
            eager(PROBLEM.spec),
            CASES,
            level="screen",
            seed=5,
            keep_going=True,
            progress=lambda verdict: seen.append(verdict.gate),
        )
    theirs = judged(engine, eager(PROBLEM.spec), beside=False)
    assert seen == [v.gate for v in ours.verdicts]
    assert set(seen) >= set(GATE_NAMES)
    for mine, other in zip(ours.verdicts, theirs.verdicts, strict=True):
        assert mine.model_copy(update={"seconds": 0.0}) == other.model_copy(update={"seconds": 0.0})
    assert {v.gate: v.status for v in ours.verdicts}["authenticity"] is Status.FAIL
    assert {v.gate: v.status for v in ours.verdicts}["purity"] is Status.PASS


def test_a_failure_ends_what_runs_beside_it(engine: Engine) -> None:
    judgement = judged(engine, eager(PROBLEM.spec), beside=True, keep_going=False)
    assert [v.gate for v in judgement.verdicts] == ["interface", "authenticity"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("gates")]
    server = psutil.Process(engine._fork_server().pid)
    deadline = time.monotonic() + 20
    while server.children(recursive=True):
        assert time.monotonic() < deadline, "workers are left"
        time.sleep(0.1)


def test_what_neighbours_took_is_judged_again(engine: Engine) -> None:
    candidate = Candidate("rms_norm", "torch", SHORT_OF_MEMORY)
    judgement = judged(engine, candidate, beside=True)
    assert {v.status for v in judgement.verdicts if v.gate != "authenticity"} == {Status.PASS}
    again = [v.metrics["judged_again_after"] for v in judgement.verdicts if "judged_again_after" in v.metrics]
    assert again
    assert all("another process has it" in str(reason) for reason in again)


def test_a_session_stopped_by_another_thread(engine: Engine) -> None:
    waits = SHORT_OF_MEMORY.replace("        try:\n", "        import time; time.sleep(60)\n        try:\n")
    shape = PROBLEM.shape(CASES[0])
    with engine.session(Candidate("rms_norm", "torch", waits)) as session:
        threading.Timer(3, session.stop).start()
        with pytest.raises(CandidateFault) as caught:
            session.run(Call(inputs=InputSpec(shape=shape, seed=1)))
        assert caught.value.kind is FaultKind.EXITED
        with pytest.raises(Stopped):
            session.run(Call(inputs=InputSpec(shape=shape, seed=1)))
