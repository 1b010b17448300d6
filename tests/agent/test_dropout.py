"""Optimisation dropout: what a draw may hide, how much, and that it depends on the seed alone."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agent.dropout import PROTECTED, STRATA, DropoutPolicy, Item, ancestor, draw

items = st.sets(
    st.builds(Item, st.sampled_from(STRATA + PROTECTED), st.text("abcdef", min_size=1, max_size=3))
)
shares = st.floats(0, 1)


@given(items, shares, st.text())
def test_protected_kinds_are_never_hidden(known: set[Item], p: float, seed: str) -> None:
    hidden = draw(known, p, seed)
    assert hidden <= known
    assert not {item.kind for item in hidden} & set(PROTECTED)


@given(items, shares, st.text())
def test_each_stratum_loses_its_share(known: set[Item], p: float, seed: str) -> None:
    total, hidden = Counter(i.kind for i in known), Counter(i.kind for i in draw(known, p, seed))
    for kind in STRATA:
        assert abs(hidden[kind] - p * total[kind]) < 1
    assert draw(known, 0.0, seed) == frozenset()


@given(items, shares, st.text(), st.randoms())
def test_a_draw_depends_on_the_seed_and_not_on_the_order(
    known: set[Item], p: float, seed: str, random: object
) -> None:
    shuffled = list(known)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert draw(shuffled, p, seed) == draw(sorted(known), p, seed)


def test_other_seeds_give_other_draws_that_hide_the_share_on_average() -> None:
    known = [Item("attempt", f"{i:02d}") for i in range(15)]
    draws = [draw(known, 0.3, str(seed)) for seed in range(400)]
    assert len(set(draws)) > 300
    assert abs(sum(map(len, draws)) / len(draws) - 4.5) < 0.1
    often = Counter(item for hidden in draws for item in hidden)
    assert all(80 <= often[item] <= 160 for item in known), "no item is favoured"


def test_the_share_grows_to_its_bound() -> None:
    policy = DropoutPolicy(p=0.3, growth=1.5, p_max=0.6)
    shares = [policy.p]
    for _ in range(3):
        shares.append(policy.grown(shares[-1]))
    assert shares == pytest.approx([0.3, 0.45, 0.6, 0.6])
    with pytest.raises(ValidationError, match="p_max"):
        DropoutPolicy(p=0.9, p_max=0.5)


names = st.text("abc", min_size=1, max_size=3)
archives = st.dictionaries(names, st.sets(st.sampled_from("xyz"), min_size=1), max_size=6)


@given(archives, names, st.sets(names), st.text())
def test_an_ancestor_is_archived_visible_and_not_the_incumbent(
    archive: dict[str, set[str]], incumbent: str, out_of_sight: set[str], seed: str
) -> None:
    hidden = frozenset(Item("parent", name) for name in out_of_sight)
    chosen = ancestor(archive, hidden, incumbent, seed)
    assert chosen == ancestor(archive, hidden, incumbent, seed)
    others = set(archive) - {incumbent}
    assert chosen in (others - out_of_sight or others or {incumbent})


def test_a_rare_technique_is_as_likely_an_ancestor_as_a_common_one() -> None:
    archive = {f"w{i}": {"num_warps"} for i in range(40)} | {"t": {"variant=tile"}}
    chosen = Counter(ancestor(archive, frozenset(), "w0", str(seed)) for seed in range(400))
    assert 150 <= chosen["t"] <= 250
