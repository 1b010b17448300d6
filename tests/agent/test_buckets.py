"""Buckets: a table gives every point the configuration of its bucket, and no other."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import dispatch
from agent.buckets import Grid, compose, configs_in, retable, rules
from agent.dispatch import Rule
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.records import Case

cuts = st.lists(st.integers(0, 12), max_size=3, unique=True).map(lambda c: tuple(sorted(c)))
grids = st.builds(lambda t, h: Grid({"t": t, "h": h}), cuts, cuts)
points = st.fixed_dictionaries({"t": st.integers(0, 15), "h": st.integers(0, 15)})
few = st.integers(0, 3).map(lambda v: {"v": v})
tables = st.tuples(
    st.lists(st.builds(Rule, st.dictionaries(st.sampled_from("th"), st.integers(0, 12)), few), max_size=4),
    few,
).map(lambda parts: (*parts[0], Rule({}, parts[1])))


def case(**size: Any) -> Case:
    return Case(operator="op", id="c", input=size, phase="prefill", weight=1)


@given(grids, points)
def test_every_point_lies_in_exactly_one_bucket(grid: Grid, point: dict[str, int]) -> None:
    (inside,) = [bucket for bucket in grid.buckets if bucket.holds(point)]
    assert grid.bucket(case(**point)) == inside
    assert inside.holds(inside.corner)


@given(grids, st.data(), points)
def test_the_first_match_is_the_buckets_own_configuration(
    grid: Grid, data: Any, point: dict[str, int]
) -> None:
    configs = {bucket: data.draw(few) for bucket in grid.buckets}
    table = rules(grid, configs)
    assert not table[-1].bounds
    (own,) = [config for bucket, config in configs.items() if bucket.holds(point)]
    assert dispatch.lookup(table, point) == own


@given(grids, tables, st.data(), points)
def test_a_move_in_some_buckets_leaves_all_others_as_they_were(
    grid: Grid, table: tuple[Rule, ...], data: Any, point: dict[str, int]
) -> None:
    moved = {b: data.draw(few) for b in data.draw(st.lists(st.sampled_from(grid.buckets), unique=True))}
    new = retable(table, grid, moved)
    expected = next((c for b, c in moved.items() if b.holds(point)), dispatch.lookup(table, point))
    assert dispatch.lookup(new, point) == expected


def test_equal_neighbours_share_a_rule() -> None:
    grid = Grid({"t": (64, 2048), "h": (256,)})
    one = rules(grid, {bucket: {"v": 1} for bucket in grid.buckets})
    assert one == (Rule({}, {"v": 1}),)
    first = grid.buckets[0]
    two = rules(grid, {bucket: {"v": 2 if bucket == first else 1} for bucket in grid.buckets})
    assert two == (Rule({"t": 64, "h": 256}, {"v": 2}), Rule({}, {"v": 1}))


def test_a_bucket_without_cases_takes_the_nearest_configuration() -> None:
    grid = Grid({"t": (10, 20, 30)})
    low, high = grid.buckets[0], grid.buckets[3]
    table = rules(grid, {low: {"v": "low"}, high: {"v": "high"}})
    assert [dispatch.lookup(table, {"t": t})["v"] for t in (1, 15, 25, 99)] == ["low", "low", "high", "high"]
    with pytest.raises(ValueError, match="at least one"):
        rules(grid, {})


def test_cases_are_grouped_by_inclusive_upper_bounds() -> None:
    grid = Grid({"t": (64, 2048)})
    groups = grid.group([case(t=t) for t in (65, 1, 64, 2048, 2049)])
    assert {b.name: [c.input["t"] for c in cases] for b, cases in groups.items()} == {
        "t 0-64": [1, 64],
        "t 65-2048": [65, 2048],
        "t 2049+": [2049],
    }
    assert Grid({}).buckets[0].name == "all"


def test_wrong_cuts_and_cases_are_named() -> None:
    with pytest.raises(UsageError, match="t: cut points must ascend"):
        Grid({"t": (2048, 64)})
    with pytest.raises(UsageError, match=r"case c of op: input\.t must be an integer"):
        Grid({"t": (64,)}).bucket(case(t="many"))


def test_a_composed_candidate_is_its_base_with_another_table() -> None:
    table = "DISPATCH = [({'t': 8}, {'v': 1}), ({}, {'v': 2})]"
    source = f"import x\n# atrex: dispatch\n{table}\n# atrex: end\nrest()\n"
    base = Candidate("op", "triton", source)
    grid = Grid({"t": (64,)})
    new = compose(base, grid, {grid.buckets[1]: {"v": 3}}, "v 2 -> 3")
    now = dispatch.read(new.source)
    assert [dispatch.lookup(now, {"t": t})["v"] for t in (8, 9, 64, 65)] == [1, 2, 2, 3]
    assert (new.parent, new.note, new.dsl) == (base.id, "v 2 -> 3", "triton")
    assert new.source.startswith("import x\n")
    assert new.source.endswith("rest()\n")
    assert configs_in(now, grid, [case(t=1), case(t=9), case(t=2)]) == ({"v": 1}, {"v": 2})
