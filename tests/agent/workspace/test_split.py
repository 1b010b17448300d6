"""Visible and hidden cases: a partition by strata, the same for the same seed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.workspace.split import split
from atrex.records import Case

WEIGHTS = st.lists(st.floats(0, 10), min_size=0, max_size=40)
SHARES = st.floats(0, 0.99)
SEEDS = st.integers(0, 1 << 40)


def cases(weights: list[float]) -> tuple[Case, ...]:
    return tuple(
        Case(
            operator="op",
            id=f"op-{number:03d}",
            input={"n": number},
            phase="decode" if number % 3 else "prefill",
            weight=weight,
        )
        for number, weight in enumerate(weights)
    )


@given(WEIGHTS, SEEDS, SHARES)
def test_it_is_a_partition_of_about_the_share(weights: list[float], seed: int, share: float) -> None:
    given_cases = cases(weights)
    visible, hidden = split(given_cases, seed, share)
    assert sorted((*visible, *hidden), key=lambda c: c.id) == list(given_cases)
    assert [c.id for c in visible] == sorted(c.id for c in visible)
    assert [c.id for c in hidden] == sorted(c.id for c in hidden)
    if len(given_cases) < 2 or share == 0:
        assert not hidden
    else:
        assert visible
        assert hidden
        assert abs(len(hidden) - share * len(given_cases)) <= 1


@given(WEIGHTS, SEEDS, SHARES)
def test_it_depends_on_the_seed_and_the_set_alone(weights: list[float], seed: int, share: float) -> None:
    given_cases = list(cases(weights))
    shuffled = random.Random(seed).sample(given_cases, len(given_cases))
    once, again = split(given_cases, seed, share), split(shuffled, seed, share)
    assert [{c.id for c in part} for part in once] == [{c.id for c in part} for part in again]


@given(st.lists(st.floats(0, 10), min_size=8, max_size=40), SEEDS)
def test_every_stratum_of_weight_gives_one(weights: list[float], seed: int) -> None:
    given_cases = tuple(c.model_copy(update={"phase": "decode"}) for c in cases(weights))
    _, hidden = split(given_cases, seed, 0.25)
    order = [c.id for c in sorted(given_cases, key=lambda c: (-c.weight, c.id))]
    places = sorted(order.index(c.id) for c in hidden)
    for stratum, place in enumerate(places):
        assert stratum * len(order) // len(places) <= place < (stratum + 1) * len(order) // len(places)


def test_seeds_differ() -> None:
    draws = {tuple(c.id for c in split(cases([1.0] * 20), seed, 0.25)[1]) for seed in range(50)}
    assert len(draws) > 25


def test_a_share_is_one() -> None:
    with pytest.raises(ValueError, match=r"\[0, 1\)"):
        split(cases([1.0]), 0, 1.0)
