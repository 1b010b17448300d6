"""What a model is told: the same for the same context, within its budget, without what dropout hides."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from agent import context
from agent.dropout import Item
from agent.events import AnyEvent
from agent.journal import Budget
from agent.lab import Knowledge, Passage
from agent.prompts import room
from agent.prompts.situation import situation
from agent.prompts.statement import Brief, statement
from agent.state import Episode, fold
from atrex.problem import load_problem, operators
from atrex.roofline import load_hardware
from tests.agent.scripted import Scripted, factor, script, search_with, wrong
from traces.workload import load_workload


def in_context(synthetic: Any, events: list[AnyEvent]) -> context.Context:
    passages = tuple(Passage(name=f"note {n}", text=f"note {n} " + "word " * 200) for n in range(40))
    return context.build(fold(events), Knowledge(passages=passages))


def recorded_events(synthetic: Any) -> list[Any]:
    events = list[Any]()
    lab = synthetic.SyntheticLab(factor, wrong=wrong)
    search_with(synthetic, Scripted(script), events, lab=lab, budget=Budget(steps=8)).run()
    return events


def test_the_same_context_gives_the_same_prompt_quickly(synthetic: Any) -> None:
    seen = in_context(synthetic, recorded_events(synthetic))
    started = time.perf_counter()
    text = situation(seen, 24_000)
    assert time.perf_counter() - started < 1.0  # the bar of 100 ms is benchmarked, not tested
    assert situation(in_context(synthetic, recorded_events(synthetic)), 24_000) == text


def test_a_small_budget_keeps_the_file_and_says_what_it_left_out(synthetic: Any) -> None:
    seen = in_context(synthetic, recorded_events(synthetic))
    large, small = situation(seen, 24_000), situation(seen, 1500)
    assert seen.base.source.strip() in small
    assert room.tokens(small) < 1700 < room.tokens(large) < 24_100
    assert "did not fit)" in small
    assert "eight rows at once" in small, "lessons come before notes"
    assert "Where its time goes" in small


def test_what_dropout_hides_is_not_in_the_prompt(synthetic: Any) -> None:
    events = recorded_events(synthetic)
    state = fold(events)
    whole = in_context(synthetic, events)
    attempt = next(a for a in whole.attempts if a.change == "one pass is enough")
    assert attempt.change in situation(whole, 24_000)
    hidden = frozenset(
        {Item("attempt", attempt.name), Item("technique", "tiling"), Item("passage", "note 3")}
    )
    episode = Episode(0.3, hidden, state.incumbent, state.incumbent, steps=1)
    knowledge = Knowledge(passages=(Passage(name="note 3", text="gone"),))
    text = situation(context.build(replace(state, episode=episode), knowledge), 24_000)
    assert attempt.change not in text
    assert "gone" not in text
    assert "Leave these techniques alone" in text
    assert "eight rows at once" in text, "lessons are never hidden"


@pytest.mark.parametrize("operator", operators())
def test_every_operator_can_be_stated(operator: str) -> None:
    problem = load_problem(operator)
    cases = load_workload("atrex-bench").cases(operator)
    text = statement(Brief(problem, cases, "cuda", "triton", load_hardware("H200"), None))
    assert problem.spec.summary in text
    assert all(f"- {name}:" in text for name in (*problem.spec.inputs, *problem.spec.dims))
    assert "def reference(" in text
    assert "def oracle(" not in text
    assert room.tokens(text) < 6000
