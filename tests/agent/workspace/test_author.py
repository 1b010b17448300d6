"""A command-line agent's versions as proposals: the last first, one session a run, what it cost once."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent import context
from agent.events import Measured, Missed, Proposal, RunStarted, Settled
from agent.history import EVENT_ENTRY
from agent.journal import Budget
from agent.lab import Knowledge
from agent.prompts.statement import Brief
from agent.proposers.tool import Assignment, ToolAuthor, room
from agent.state import fold
from agent.workspace import guard
from agent.workspace.account import Account
from agent.workspace.session import Session
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.ledger import Ledger
from atrex.problem import load_problem
from atrex.records import Bound, Latency
from atrex.roofline import load_hardware
from atrex.runs import Run, RunMeta, create_run, now
from atrex.spending import Spending
from tests.agent.scripted import search_with
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


def author(run: Run, mode: str, said: list[str] | None = None, **limits: Any) -> ToolAuthor:
    work = Assignment(
        "claude-code", "", **{"seconds": 60.0, "tokens": None, "dollars": None, **limits}, prompt=mode
    )
    return ToolAuthor(run, BRIEF, work, (said if said is not None else []).append)


def fallen(run: Run, **more: Any) -> Session:
    """A session that was killed, as the run holds it."""
    kernel = Candidate("rms_norm", "torch", "class Model: saved = 1\n")
    facts = {"seconds": 20.0, "tokens": 900, "dollars": 4.9, "turns": 3, "versions": (kernel,), **more}
    found = Session(tool="claude-code", version="1.0", transcript=run.path / "transcript.jsonl", **facts)
    Account(sessions=(found,)).save(run)
    return found


def under_way(run: Run) -> Session | None:
    """The session that is at work, once it has told of some calls."""
    sessions = Account.of(run).sessions
    return sessions[0] if sessions and (sessions[0].tokens or 0) >= 3000 else None


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


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


def test_a_kill_leaves_what_was_used_and_saved(run: Run, synthetic: Any) -> None:
    writer, said = author(run, "spend 1000", dollars=5.0), list[str]()
    atrex = multiprocessing.get_context("fork").Process(target=writer.write, args=(in_context(synthetic, 0),))
    atrex.start()
    try:
        wait_for(lambda: under_way(run))
    finally:
        atrex.kill()
        atrex.join()
    killed = Account.of(run).sessions[0]
    assert killed.reason == "interrupted"
    assert killed.dollars
    answer = author(run, "called", said, dollars=5.0).write(in_context(synthetic, 0))
    assert isinstance(answer, Proposal)
    assert answer.candidate.source == "class Model: a = 1\n"
    first, second = Account.of(run).sessions
    assert first == killed
    assert answer.spent.tokens == (first.tokens or 0) + (second.tokens or 0)
    assert answer.spent.dollars == pytest.approx((first.dollars or 0) + (second.dollars or 0))
    told = (run.path / "transcript-2.jsonl").read_text()
    (budget,) = set(re.findall(r"--max-budget-usd ([\d.]+)", told))
    assert float(budget) == pytest.approx(5.0 - killed.dollars)
    assert "kernel 'class Model: a = 1" in told
    assert "an earlier session" in (run.path / "workspace/TASK.md").read_text()
    assert f"for at most {60 - killed.seconds:.0f} s" in said[0]


def test_ctrl_c_leaves_it_too(run: Run, synthetic: Any) -> None:
    """Tests in the background of a shell would ignore the key: so it is heeded here, whatever was before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press() -> None:
        wait_for(lambda: under_way(run))
        os.kill(os.getpid(), signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    with pytest.raises(KeyboardInterrupt):
        author(run, "spend 1000").write(in_context(synthetic, 0))
    finger.join()
    signal.signal(signal.SIGINT, before)
    (stopped,) = Account.of(run).sessions
    assert stopped.reason == "interrupted"
    assert stopped.dollars
    assert stopped.kernel is not None


@pytest.mark.parametrize(
    ("limits", "name"),
    [({"dollars": 4.9}, "dollars"), ({"tokens": 900}, "tokens"), ({"seconds": 20.0}, "time")],
)
def test_with_nothing_left_what_was_saved_is_tried_all_the_same(
    run: Run, synthetic: Any, limits: dict[str, Any], name: str
) -> None:
    killed, said = fallen(run), list[str]()
    answer = author(run, "no session is started", said, **limits).write(in_context(synthetic, 0))
    assert said == [f"claude-code is not started: no {name} left for a session"]
    assert isinstance(answer, Proposal)
    assert answer.candidate.id == killed.versions[0].id
    assert (answer.spent.tokens, answer.spent.dollars, answer.spent.seconds) == (900, 4.9, 20.0)
    again = author(run, "versions").write(in_context(synthetic, 1))  # a limit that was raised since
    assert again is None


def test_a_run_without_any_money_says_so(run: Run, synthetic: Any) -> None:
    answer = author(run, "versions", dollars=0.0).write(in_context(synthetic, 0))
    assert isinstance(answer, Missed)
    assert answer.reason == "claude-code (not started): no dollars left for a session"
    assert answer.spent == Spending()


def test_an_unknown_price_may_be_any(run: Run, synthetic: Any) -> None:
    fallen(run, dollars=None)
    answer = author(run, "no session is started", dollars=5.0).write(in_context(synthetic, 0))
    assert isinstance(answer, Proposal)
    assert answer.spent.dollars is None


def test_no_session_is_started_once_there_was_an_answer(run: Run, synthetic: Any) -> None:
    """Its cost would be in no event: the first answer carries that."""
    fallen(run)
    assert author(run, "versions").write(in_context(synthetic, 1)) is None


def test_every_version_is_tried_after_a_session_that_was_cut_off(run: Run, synthetic: Any) -> None:
    """Half of a file in the kernel's place, no tokens left: the search goes through all that was saved."""
    happened = list[Any]()
    writer = author(run, "cut_off 7", tokens=500_000)
    search = search_with(synthetic, None, happened, author=writer, budget=Budget(seconds=1e6))
    assert search.run().finished == "exhausted"
    offered = [each for each in happened if isinstance(each, Proposal) and each.origin == "model"]
    assert [each.candidate.source for each in offered] == [
        f"class Model: a = {number}\n" for number in reversed(range(7))
    ]
    assert sum(isinstance(event, Settled) for event in happened) == 7
    (session,) = Account.of(run).sessions
    assert (session.reason, session.objection) == ("tokens", "kernel.py: not Python")


@pytest.mark.parametrize(
    ("left", "trial", "seconds"),
    [
        (100.0, 0.0, 60.0),  # nothing is known of a trial
        (100.0, 30.0, 40.0),  # two fit
        (100.0, 45.0, 25.0),  # they do not: a session without time would save nothing
        (math.inf, 30.0, math.inf),
        (-1.0, 0.0, -0.25),
    ],
)
def test_a_session_leaves_room_for_two_trials(left: float, trial: float, seconds: float) -> None:
    assert room(left, trial) == pytest.approx(seconds)


def test_the_run_says_how_long_a_trial_is(run: Run, synthetic: Any) -> None:
    said, times = list[str](), {"elapsed": 10.0}
    start = RunStarted(
        operator="rms_norm",
        seed=3,
        proposer="p",
        start=synthetic.EAGER,
        cases=CASES,
        judged_seconds=20.0,
        **times,
    )
    with Ledger(run.ledger) as ledger:
        ledger.append(EVENT_ENTRY, start)
        ledger.append(EVENT_ENTRY, Measured(candidate="c", latencies={}, bounds={}, elapsed=11.25))
    author(run, "versions", said, left=lambda: 100.0).write(in_context(synthetic, 0))
    assert said[0].endswith("for at most 40 s")  # 60 for trials: gates 20, a screening 5, timing 4 times 1.25


def test_the_run_is_out_of_the_tools_sight(run: Run, synthetic: Any) -> None:
    author(run, "called").write(in_context(synthetic, 0))
    (session,) = Account.of(run).sessions
    if guard.FILES in session.walls:
        assert "beside ['workspace']" in session.transcript.read_text()


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
