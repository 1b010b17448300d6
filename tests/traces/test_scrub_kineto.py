"""Scrubbing events of Kineto: what is kept is what ingestion would have kept."""

from __future__ import annotations

import json
from typing import Any

import orjson
from hypothesis import example, given, settings
from hypothesis import strategies as st

from traces import scrub_kineto
from traces.readers.kineto_columns import Reader
from traces.scrub_names import Names

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["", "kernel", "7", "half \ud800 a character", "X"]),
    st.lists(st.integers(-3, 2**66), max_size=2),
    st.just({}),
)
LISTS = st.one_of(st.none(), st.lists(st.one_of(st.integers(), st.lists(st.integers(0, 2**70))), max_size=2))
SCALARS = st.one_of(JUNK, st.sampled_from(["1e-06", "[1, 2]", "True", "None", "of alice", "[1, x]"]))
FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
NUMBERS = ("device", "stream", "correlation", "External id", "graph node id")
CATEGORIES = ("kernel", "gpu_memcpy", "cpu_op", "cuda_runtime", "user_annotation", "python_function", "Trace")


@example(category="kernel", fields={"pid": -(2**63) - 1}, numbers={}, lists={}, scalars=None)
@example(category="cpu_op", fields={}, numbers={}, lists={"Input type": [-(2**63) - 1]}, scalars=None)
@given(
    category=st.sampled_from(CATEGORIES),
    fields=st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=2),
    numbers=st.dictionaries(st.sampled_from(NUMBERS), JUNK, max_size=2),
    lists=st.dictionaries(st.sampled_from(("Input Dims", "Input type")), LISTS, max_size=2),
    scalars=st.one_of(JUNK, st.lists(SCALARS, max_size=3)),
)
@settings(max_examples=600, deadline=None)
def test_malformed_events_go_exactly_if_ingestion_leaves_them_out(
    category: str, fields: dict[str, Any], numbers: dict[str, Any], lists: dict[str, Any], scalars: Any
) -> None:
    event = {"ph": "X", "cat": category, "name": "a", "pid": 1, "tid": 2, "ts": 1.5, "dur": 2}
    args = {"device": 0, "stream": 7, "correlation": 5, "External id": 6, "Input Dims": [[1]]}
    args |= {"Concrete Inputs": scalars}
    event |= {"args": args | numbers | lists} | fields
    new = scrub_kineto.Rewriter(Names()).event(event)
    readers = Reader(), Reader()
    readers[0].take([event])
    readers[1].take([] if new is None else [json.loads(orjson.dumps(new))])
    rows = [{table: len(found) for table, found in reader.rows.items()} for reader in readers]
    assert rows[0] == rows[1]
    told = [[reader.listed_texts()[row[-1]] for row in reader.rows["span"]] for reader in readers]
    assert told[0] == told[1]
