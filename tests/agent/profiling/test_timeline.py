"""Kineto's events of one call, on a fixture written by hand, and what a hostile worker may send instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent.profiling import timeline
from atrex import inside

FIXTURE = Path(__file__).parent / "fixtures" / "kineto" / "five_small_kernels.json"
EVENTS: list[Any] = json.loads(FIXTURE.read_text(encoding="utf-8"))["traceEvents"]


def kernel(start: float, duration: float, name: str = "k") -> dict[str, Any]:
    return {"cat": "kernel", "name": name, "ts": start, "dur": duration, "args": {}}


def test_launches_and_gaps_of_a_call() -> None:
    seen, kernels, notes = timeline.read(EVENTS)
    assert seen is not None
    assert notes == ()
    assert seen.launches == len(kernels) == 6
    assert seen.busy_us == pytest.approx(sum(k.duration_us for k in kernels)) == pytest.approx(14.0)
    assert seen.idle_us == pytest.approx(41.5 - 14.0)
    assert seen.host_us == pytest.approx(36.5)
    assert kernels[1].grid == (64, 1, 1)
    assert (kernels[1].warps, kernels[1].registers, kernels[1].occupancy) == (4, 32, 0.03)


def test_kernels_that_overlap_are_busy_once() -> None:
    seen, _, _ = timeline.read([kernel(10, 5), kernel(0, 8), kernel(2, 3), kernel(12, 1)])
    assert seen is not None
    assert (seen.busy_us, seen.idle_us) == (13, 2)


def test_order_does_not_matter() -> None:
    assert timeline.read(EVENTS[::-1]) == timeline.read(EVENTS)


def test_no_kernel_is_a_note() -> None:
    assert timeline.read([]) == (None, (), ("the profiler saw no kernel",))


@pytest.mark.parametrize(
    "event",
    [
        None,
        "kernel",
        {"cat": "kernel"},
        kernel(0, -1),
        kernel(float("nan"), 1),
        kernel(0, float("inf")),
        {**kernel(0, 1), "args": {"grid": [1, 2]}},
        {**kernel(0, 1), "name": 7},
    ],
)
def test_what_is_no_event_is_counted_and_left_out(event: object) -> None:
    seen, kernels, notes = timeline.read([event, kernel(0, 1)])
    assert seen is not None
    assert len(kernels) == 1
    assert notes == ("1 events of the profiler could not be read",)


def test_a_flood_is_cut() -> None:
    seen, kernels, notes = timeline.read([kernel(i, 0.5) for i in range(12_000)])
    assert seen is not None
    assert len(kernels) == 4_000
    assert "of 12000" in notes[0]


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("_rms_norm_kernel", "_rms_norm_kernel"),
        ("void ns::scale<float, 4>(float*, int)", "scale"),
        ("void (anonymous namespace)::scale<(int)4>(float*)", "scale"),
        ("gather(unsigned short const*, long)", "gather"),
    ],
)
def test_one_kernel_has_one_plain_name(name: str, short: str) -> None:
    assert timeline.plain(name) == short


def test_the_worker_s_half_runs_where_there_is_no_gpu() -> None:
    calls = list[int]()
    found = inside.events(lambda: calls.append(1))
    assert len(calls) == inside.WARM_UP + 1
    assert all(event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset") for event in found)
