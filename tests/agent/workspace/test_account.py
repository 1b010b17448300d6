"""What the sessions of a run add up to: sums, versions, what is left of limits, what no event tells of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent.events import Finished, Measured, Missed
from agent.workspace.account import Account
from agent.workspace.session import Session
from atrex.candidate import Candidate
from atrex.runs import Run, RunMeta, create_run, now


def kernel(name: str) -> Candidate:
    return Candidate("rms_norm", "torch", f"class Model: {name} = 1\n")


def session(saved: str = "", left: str = "", **more: Any) -> Session:
    facts = {"seconds": 10.0, "tokens": 100, "dollars": 1.0, "turns": 2, **more}
    versions = tuple(map(kernel, saved))
    last = kernel(left) if left else None
    return Session(
        tool="codex", version="1", transcript=Path("t.jsonl"), versions=versions, kernel=last, **facts
    )


def account(*sessions: Session) -> Account:
    return Account(sessions=sessions)


def test_what_was_left_comes_first_and_nothing_twice() -> None:
    found = account(session("ab", "a"), session("bcd")).versions
    assert [each.source for each in found] == [kernel(name).source for name in "dcba"]


def test_only_the_last_session_can_be_gone_on_with() -> None:
    assert not account().ended
    assert not account(session(reason="interrupted")).ended
    assert account(session(reason="interrupted"), session(reason="done")).ended
    assert Account(refusal="no time").ended


def test_sums() -> None:
    both = account(session(), session(tokens=50, dollars=0.5)).spent
    assert (both.calls, both.tokens, both.dollars, both.seconds) == (4, 150, 1.5, 20.0)
    assert not both.estimated
    silent = account(session(), session(tokens=None, dollars=None)).spent
    assert (silent.tokens, silent.dollars, silent.estimated) == (100, None, True)


def test_what_is_left() -> None:
    both = account(session(), session())
    assert both.tokens_left(1000) == 800
    assert both.dollars_left(5.0) == 3.0
    assert both.tokens_left(None) is None
    assert both.dollars_left(None) is None
    unpriced = account(session(), session(dollars=None))
    assert unpriced.dollars_left(5.0) == 0.0
    assert unpriced.tokens_left(1000) == 800
    silent = account(session(), session(dollars=None, tokens=None))  # ended before its first call
    assert (silent.dollars_left(5.0), silent.tokens_left(1000)) == (4.0, 900)


def test_it_comes_back_from_the_disk(tmp_path: Path) -> None:
    meta = RunMeta(created=now(), command=("atrex",), operator="rms_norm", device="cpu", seed=3)
    run: Run = create_run(tmp_path, meta)
    assert Account.of(run) == Account()
    known = account(session("ab", "b")).save(run)
    assert Account.of(run) == known


MEASURED = Measured(candidate="c", latencies={}, bounds={}, elapsed=5.0)
INTERRUPTED = Finished(reason="interrupted", best="c", elapsed=16.0)


@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        ([], 20.0),
        ([MEASURED], 20.0),  # both were killed
        ([MEASURED, INTERRUPTED], 9.0),  # one of them by Ctrl-C, after 11 seconds of its search
        ([MEASURED, INTERRUPTED, Missed(reason="r", elapsed=26.0), MEASURED], 0.0),
        ([MEASURED, Missed(reason="r", elapsed=15.0)], 10.0),  # the second one ended
    ],
)
def test_seconds_that_no_event_tells_of(events: list[Any], seconds: float) -> None:
    assert account(session(), session()).unrecorded(events) == seconds
