"""Traces with anything wrong are read or refused with one line: no other error, and no hang.

`python benchmarks/trace_ingest.py --fuzz 600` goes on for as long as one likes.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "benchmarks")]

import kineto_made
import trace_ingest

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
fields = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]
arguments = ["device", "stream", "correlation", "External id", "Input Dims", "Input type", "graph node id"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(fields + arguments), values), max_size=4))
def test_any_value_in_any_field(changes: list[tuple[int, str, Any]]) -> None:
    events = kineto_made.step()
    for number, name, value in changes:
        place = events[number] if name in fields else events[number]["args"]
        if isinstance(place, dict):
            place[name] = value
    with TemporaryDirectory() as directory:
        path = Path(directory) / "t.json"
        try:
            kineto_made.written(path, events)
        except UnicodeEncodeError:
            return
        assert trace_ingest.outcome(path)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 32))
def test_spoilt_traces(seed: int) -> None:
    chance = Random(seed)
    with TemporaryDirectory() as directory:
        path = kineto_made.written(Path(directory) / "t.json", kineto_made.step() * 3)
        data = path.read_bytes()
        for _ in range(chance.randrange(1, 4)):
            data = trace_ingest.spoilt(data, chance)
        path.write_bytes(data)
        assert trace_ingest.outcome(path)


def test_a_fault_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: Path) -> None:
        raise KeyError(path)

    monkeypatch.setattr(trace_ingest, "ingest", fails)
    with pytest.raises(KeyError):
        trace_ingest.outcome(tmp_path / "t.json")
