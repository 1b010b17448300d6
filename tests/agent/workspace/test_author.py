"""A command-line agent's versions as proposals: the last first, one session a run, what it cost once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import context
from agent.events import Measured, Missed, Proposal, RunStarted
from agent.lab import Knowledge
from agent.prompts.statement import Brief
from agent.proposers.tool import Assignment, ToolAuthor
from agent.state import fold
from atrex.errors import UsageError
from atrex.problem import load_problem
from atrex.records import Bound, Latency
from atrex.roofline import load_hardware
from atrex.runs import Run, RunMeta, create_run, now
from atrex.spending import Spending
from tests.agent.workspace.conftest import HIDDEN, case

pytestmark = pytest.mark.usefixtures("doubles")
CASES = (case(0, 30011, 128), HIDDEN)
BRIEF = Brief(load_problem("rms_norm"), CASES, "cpu", "cpp", load_hardware("H200"), None)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    meta = RunMeta(created=now(), command=("atrex",), operator="rms_norm", device="cpu", seed=3)
    return create_run(tmp_path / "runs", meta)


def in_context(synthetic: Any, answers: int) -> context.Context:
    """A search that has only measured its start."""
    start = RunStarted(
        operator="rms_norm", seed=3, proposer="claude-code", start=synthetic.EAGER, cases=CASES
    )
    latency = Latency(median_us=9.0, p10_us=9.0, p90_us=9.0, n=3, method="wall")
    bound = Bound(sol_us=1.0, attainable_us=2.0, limiter="memory")
    measured = Measured(
        candidate=synthetic.EAGER.id,
        latencies={case.id: latency for case in CASES},
        bounds={case.id: bound for case in CASES},
    )
    return replace(context.build(fold([start, measured]), Knowledge()), answers=answers)


def author(run: Run, mode: str, said: list[str] | None = None) -> ToolAuthor:
    work = Assignment("claude-code", "", 60.0, None, None, prompt=mode)
    return ToolAuthor(run, BRIEF, work, (said if said is not None else []).append)


def test_what_it_left_comes_first_and_is_paid_for_once(run: Run, synthetic: Any) -> None:
    writer = author(run, "versions")
    first, second, third = (writer.write(in_context(synthetic, answers)) for answers in range(3))
    assert isinstance(first, Proposal)
    assert isinstance(second, Proposal)
    assert [each.candidate.source for each in (first, second)] == [
        "class Model: a = 1\n",
        "class Model: b = 2\n",
    ]
    assert third is None
    assert first.candidate.parent == synthetic.EAGER.id
    assert first.spent.tokens > 0
    assert second.spent == Spending()


def test_a_session_that_has_ended_is_not_made_again(run: Run, synthetic: Any) -> None:
    author(run, "versions").write(in_context(synthetic, 0))
    again = author(run, "a mode that the double does not know")
    second = again.write(in_context(synthetic, 1))
    assert isinstance(second, Proposal)
    assert second.candidate.source == "class Model: b = 2\n"


def test_what_a_killed_session_left_does_not_stand_in_the_way(run: Run, synthetic: Any) -> None:
    (run.path / "workspace").mkdir()
    (run.path / "workspace/kernel.py").write_text("half a fi")
    assert isinstance(author(run, "versions").write(in_context(synthetic, 0)), Proposal)


def test_nothing_saved_is_a_miss_that_says_why(run: Run, synthetic: Any) -> None:
    said = list[str]()
    answer = author(run, "exits", said).write(in_context(synthetic, 0))
    assert isinstance(answer, Missed)
    assert answer.reason.startswith("claude-code (")
    assert len(answer.reason.splitlines()) == 1
    assert any("works in" in line for line in said)
    assert author(run, "exits").write(in_context(synthetic, 1)) is None


def test_a_hidden_case_is_in_no_file_of_the_workspace(run: Run, synthetic: Any) -> None:
    author(run, "exits").write(in_context(synthetic, 0))
    texts = [path.read_text() for path in (run.path / "workspace").rglob("*") if path.is_file()]
    seen = [case for case in CASES if any(str(case.input["token_count"]) in text for text in texts)]
    assert len(seen) == 1


def test_a_damaged_record_of_a_session_is_named(run: Run, synthetic: Any) -> None:
    (run.path / "session.json").write_text('{"tool": "claude-code"}')
    with pytest.raises(UsageError, match=r"session\.json: field"):
        author(run, "versions").write(in_context(synthetic, 0))
