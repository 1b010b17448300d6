"""Adding up launches: sums, shares of overlapping launches, pauses; whatever the order of the rows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traces.condense import COLUMNS, MOST_SCALARS, condense

DEFAULTS: dict[str, Any] = {
    "kind": "kernel",
    "kernel": "k",
    "device": 0,
    "operator": "",
    "stack": "[]",
    "module": "",
    "shapes": "",
    "dtypes": "",
    "scalars": "",
    "annotations": "[]",
    "graph": False,
    "stream": 7,
}
TEXTS = ("kind", "kernel", "operator", "stack", "module", "shapes", "dtypes", "scalars", "annotations")


def table(*launches: dict[str, Any]) -> pandas.DataFrame:
    """A launch table of rows that differ from the default."""
    rows = [{**DEFAULTS, **launch} for launch in launches]
    return pandas.DataFrame(rows, columns=list(COLUMNS)).astype(dict.fromkeys(TEXTS, "category"))


def at(start: float, duration: float, **more: Any) -> dict[str, Any]:
    """One launch."""
    return {"start_us": start, "duration_us": duration, **more}


def union(launches: list[dict[str, Any]]) -> float:
    """Time in which anything ran, the slow way: between any two neighbouring times, is something open?"""
    times = sorted(
        {time for one in launches for time in (one["start_us"], one["start_us"] + one["duration_us"])}
    )
    return sum(
        later - earlier
        for earlier, later in pairwise(times)
        if any(
            one["start_us"] <= earlier and later <= one["start_us"] + one["duration_us"] for one in launches
        )
    )


times = st.integers(0, 400).map(lambda quarter: quarter / 4)  # exact in a double
some = st.lists(
    st.builds(
        at,
        times,
        times,
        device=st.integers(0, 2),
        stream=st.integers(0, 2),
        kernel=st.sampled_from("abc"),
        stack=st.sampled_from(["[]", '["a","b"]', '["b"]']),
        graph=st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(some)
def test_busy_time_is_the_union_and_device_time_the_durations(launches: list[dict[str, Any]]) -> None:
    entries, devices = condense(table(*launches))
    assert sum(entry.launches for entry in entries) == len(launches)
    for device in devices:
        own = [one for one in launches if one["device"] == device.device]
        mine = [entry for entry in entries if entry.device == device.device]
        assert device.busy_us == pytest.approx(union(own))
        assert sum(entry.busy_us for entry in mine) == pytest.approx(union(own))
        assert sum(entry.device_us for entry in mine) == pytest.approx(sum(one["duration_us"] for one in own))
        assert all(entry.busy_us <= entry.device_us + 1e-9 for entry in mine)
        assert device.streams == len({one["stream"] for one in own})
        first = min(one["start_us"] for one in own)
        assert device.span_us == max(one["start_us"] + one["duration_us"] for one in own) - first
        assert sum(gaps.total_us for gaps in device.gaps) <= device.idle_us + 1e-9


@settings(max_examples=40, deadline=None)
@given(some, st.randoms(use_true_random=False))
def test_the_order_of_rows_changes_nothing(launches: list[dict[str, Any]], chance: Any) -> None:
    mixed = launches[:]
    chance.shuffle(mixed)
    assert condense(table(*mixed)) == condense(table(*launches))


@settings(max_examples=40, deadline=None)
@given(some, st.integers(0, 1 << 42))
def test_the_origin_of_time_changes_nothing(launches: list[dict[str, Any]], later: int) -> None:
    moved = [{**one, "start_us": one["start_us"] + later} for one in launches]
    assert condense(table(*moved)) == condense(table(*launches))


def test_overlapping_launches_share_equally() -> None:
    entries, _ = condense(table(at(0, 10, kernel="long"), at(2, 2, kernel="a"), at(3, 2, kernel="b")))
    shares = {entry.kernel: entry.busy_us for entry in entries}
    assert shares == pytest.approx({"long": 2 + 0.5 + 1 / 3 + 0.5 + 5, "a": 0.5 + 1 / 3, "b": 1 / 3 + 0.5})


def test_devices_do_not_share() -> None:
    entries, devices = condense(table(at(0, 4), at(0, 4, device=3)))
    assert [(entry.device, entry.busy_us) for entry in entries] == [(0, 4.0), (3, 4.0)]
    assert [device.device for device in devices] == [0, 3]


def test_entries_differ_by_every_part_of_their_key() -> None:
    different = {
        "kind": "copy",
        "kernel": "other",
        "device": 1,
        "operator": "aten::mm",
        "stack": '["aten::mm"]',
        "module": "Linear",
        "shapes": "[[1]]",
        "dtypes": '["float"]',
        "scalars": '["2"]',
        "annotations": '["step"]',
        "graph": True,
    }
    rows = [at(0, 1), *(at(0, 1, **{name: value}) for name, value in different.items())]
    entries, _ = condense(table(*rows, *rows))
    assert len(entries) == len(rows)
    assert all(entry.launches == 2 for entry in entries)
    by_stack = {entry.stack: entry.annotations for entry in entries}
    assert by_stack[("aten::mm",)] == ()


def test_scalars_that_count_launches_do_not_tell_them_apart() -> None:
    """Sequence numbers of one operation go; another's few scalars, in the same table, stay."""
    counted = [at(10 * n, 1, operator="c10d::send", scalars=f'["{n}"]') for n in range(MOST_SCALARS + 1)]
    few = [at(10 * n + 5, 1, operator="aten::topk", scalars=f'["","{n % 3}"]') for n in range(9)]
    entries, _ = condense(table(*counted, *few))
    assert {(entry.operator, entry.scalars, entry.launches) for entry in entries} == {
        ("c10d::send", "", MOST_SCALARS + 1),
        *(("aten::topk", f'["","{n}"]', 3) for n in range(3)),
    }
    entries, _ = condense(table(*counted[:-1], *few))
    assert len(entries) == MOST_SCALARS + 3


def test_most_time_comes_first_and_ties_by_name() -> None:
    entries, _ = condense(table(at(0, 1, kernel="b"), at(5, 1, kernel="a"), at(9, 3, kernel="c")))
    assert [entry.kernel for entry in entries] == ["c", "a", "b"]


def test_pauses_by_powers_of_ten() -> None:
    _, (device,) = condense(
        table(at(0, 1), at(1.5, 1), at(3.5, 1), at(14.25, 1), at(25.25, 1), at(2025.25, 1))
    )
    assert [(gaps.least_us, gaps.count) for gaps in device.gaps] == [(1.0, 2), (10.0, 1), (1000.0, 1)]
    assert sum(gaps.total_us for gaps in device.gaps) == pytest.approx(1 + 9.75 + 10 + 1999)
    assert device.idle_us == pytest.approx(1 + 9.75 + 10 + 1999 + 0.5)


def test_a_launch_within_another_makes_no_pause() -> None:
    _, (device,) = condense(table(at(0, 100), at(10, 1), at(110, 1)))
    assert [(gaps.least_us, gaps.count, gaps.total_us) for gaps in device.gaps] == [(10.0, 1, 10.0)]


def test_nothing_is_nothing() -> None:
    assert condense(table(at(0, 1)).iloc[:0]) == ((), ())


@pytest.mark.parametrize("bad", [{"duration_us": -1.0}, {"duration_us": np.nan}, {"start_us": np.inf}])
def test_impossible_times_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="duration of at least 0"):
        condense(table({**at(0, 1), **bad}))
