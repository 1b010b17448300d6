"""What ends the asking, and what goes on without it."""

from __future__ import annotations

from typing import Any

import pytest

from agent.events import Finished
from agent.funds import Funds
from agent.journal import Budget
from agent.models.failures import ModelUnavailable
from agent.models.records import Reply, Request, Stop
from agent.proposers.model import Asking
from atrex.spending import Spending
from tests.agent.scripted import BRIEF, FENCE, Scripted, file, outcomes, said, search_with

BAD = said(file("good"), "no markup [/2], no [bold]\x1b[31m red", tunables='{"rows": [1, 2, 4]}')


@pytest.mark.parametrize(
    ("funds", "spent", "allowed"),
    [
        (Funds(), Spending(input_tokens=10**9, dollars=None, calls=1), True),
        (Funds(tokens=100), Spending(input_tokens=60, output_tokens=39, calls=1), True),
        (Funds(tokens=100), Spending(input_tokens=60, output_tokens=40, calls=1), False),
        (Funds(dollars=1.0), Spending(dollars=0.99, calls=1), True),
        (Funds(dollars=1.0), Spending(dollars=1.0, calls=1), False),
        (Funds(dollars=1.0), Spending(dollars=None, calls=1), False),
        (Funds(dollars=0.0), Spending(), False),
        (Funds(left=lambda: 11.0), Spending(calls=2, seconds=20.0), True),
        (Funds(left=lambda: 9.0), Spending(calls=2, seconds=20.0), False),
        (Funds(left=lambda: 0.0), Spending(), False),
    ],
)
def test_one_more_question(funds: Funds, spent: Spending, allowed: bool) -> None:
    assert funds.allow(spent) is allowed


def test_the_tuner_goes_on_when_nothing_more_may_be_asked(synthetic: Any) -> None:
    """One answer is paid for; its parameters are tuned all the same, and then the search is exhausted."""
    model, events = Scripted(lambda _: BAD), list[Any]()
    author = Asking(model, BRIEF, funds=Funds(tokens=1000))
    search = search_with(synthetic, model, events, author=author, budget=Budget(steps=20))
    state = search.run()
    assert len(model.asked) == 1
    assert state.step > 1
    assert state.best.source.count('"rows": 4') == 1, "the lab's best"
    assert state.finished == "exhausted"


def test_a_malformed_answer_is_not_repaired_on_credit(synthetic: Any) -> None:
    model, events = Scripted(lambda _: "nothing to read"), list[Any]()
    author = Asking(model, BRIEF, funds=Funds(dollars=0.01))
    search_with(synthetic, model, events, author=author).run()
    assert len(model.asked) == 1
    assert outcomes(events)[0].startswith("missed: ")


def test_a_model_that_fails_ends_the_search_and_loses_nothing(synthetic: Any) -> None:
    """The champion so far stays, the next session asks again, and no step is repeated."""
    down = True

    def answer(request: Request) -> str:
        if request.sample and down:
            raise ModelUnavailable("the credit is used up")
        return said(file("better" if request.sample else "good"), f"answer {request.sample}")

    model, events = Scripted(answer), list[Any]()
    search = search_with(synthetic, model, events, budget=Budget(steps=2))
    state = search.run()
    assert isinstance(search.failure, ModelUnavailable)
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "failed"
    assert state.best.source == file("good")
    down = False
    again = search_with(synthetic, model, events, budget=Budget(steps=2))
    assert again.run().best.source == file("better")
    assert again.failure is None
    assert outcomes(events) == ["promoted", "promoted"]


class _Slow(Scripted):
    """Answers when half a minute has passed, or fails when it may not take so long."""

    now = 0.0
    given: list[float | None]

    def complete(self, request: Request, *, seconds: float | None = None) -> Reply:
        self.given = [*getattr(self, "given", []), seconds]
        self.now += 30.0 if seconds is None else min(30.0, seconds)
        if seconds is not None and seconds < 30.0:
            raise ModelUnavailable("the deadline")
        text = self.answer(request)
        assert isinstance(text, str)
        return Reply(text=text, stop=Stop.END, model=self.name, seconds=30.0)


def test_a_question_takes_no_longer_than_what_is_left(synthetic: Any) -> None:
    """What runs out is the run's time: no failure, and no third question of the same length."""
    model = _Slow(lambda request: f"{request.sample} {FENCE}")
    author = Asking(model, BRIEF, funds=Funds(left=lambda: 50.0 - model.now))
    search = search_with(synthetic, model, list[Any](), author=author)
    search.run()
    assert search.failure is None
    assert model.given == [50.0]
    first = _Slow(lambda request: f"{request.sample} {FENCE}")
    author = Asking(first, BRIEF, funds=Funds(left=lambda: 20.0 - first.now))
    search = search_with(synthetic, first, list[Any](), author=author)
    assert search.run().step == 0
    assert search.failure is None
