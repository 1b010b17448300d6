"""Parents by bucket: a file that wins somewhere and does not fit into the incumbent is told of there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agent import context
from agent.dropout import Item
from agent.journal import Budget
from agent.lab import Knowledge
from agent.prompts.situation import situation
from agent.state import Episode, SearchState
from tests.agent.scripted import Scripted, by_size, outcomes, said, search_with, whole_file

SPEEDS = {"many": (3.0, 1.5), "few": (1.5, 3.0)}  # few tokens, many tokens
HEADING = "## Faster in one bucket, and no part of it"


def answer(request: Any) -> str:
    name = ["many", "few"][min(request.sample, 1)]
    return said(whole_file(name), f"made for {name}")


def searched(synthetic: Any, merged: Any) -> tuple[SearchState, list[str]]:
    events = list[Any]()
    lab = by_size(synthetic, SPEEDS, merged)
    state = search_with(synthetic, Scripted(answer), events, lab=lab, budget=Budget(steps=2)).run()
    return state, outcomes(events)


def slow(factors: list[float]) -> float:
    """Choosing between two costs more than it gains."""
    return factors[0] if len(factors) == 1 else 9.0


def test_a_file_that_wins_in_a_bucket_is_where_to_go_on_from_there(synthetic: Any) -> None:
    state, found = searched(synthetic, slow)
    assert found == ["promoted", "unconfirmed"]
    seen = context.build(state, Knowledge())
    assert {parent.bucket.name for parent in seen.parents} <= {d.bucket.name for d in seen.diagnoses}
    assert seen.parents
    for parent in seen.parents:
        assert "def few" in parent.candidate.source
        assert "token_count 0-64" in parent.bucket.name
        assert 1.8 < parent.gain < 2.2
    text = situation(seen, 24_000)
    assert HEADING in text
    assert "x2.0" in text
    assert "made for few" in text.split(HEADING)[1]
    assert "def few" in text.split(HEADING)[1]


def test_what_the_incumbent_holds_is_no_parent(synthetic: Any) -> None:
    state, found = searched(synthetic, min)
    assert found == ["promoted", "promoted"]
    seen = context.build(state, Knowledge())
    assert not [p for p in seen.parents if p.gain > 1.1]
    assert HEADING not in situation(seen, 24_000)


def test_dropout_hides_parents(synthetic: Any) -> None:
    state, _ = searched(synthetic, slow)
    (name,) = {parent.candidate.id for parent in context.build(state, Knowledge()).parents}
    episode = Episode(0.3, frozenset({Item("parent", name)}), state.incumbent, state.incumbent)
    hidden = context.build(replace(state, episode=episode), Knowledge())
    assert hidden.parents == ()
