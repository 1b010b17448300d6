"""Traces that are spoilt, or no traces at all: one clear line each, and no event lost in silence."""

from __future__ import annotations

import gzip
import json
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest

sys.path.append(str(Path(__file__).parent))

from kineto_made import Event, event, kernel, launch, op, step, written

from traces.condense import condense
from traces.ingest import ingest
from traces.profile import Profile
from traces.readers import Reading, UnreadableTrace, kineto, kineto_columns, kineto_events, packed

PLAIN = json.dumps({"traceEvents": step()}).encode()


def refused(path: Path, **options: Any) -> str:
    """Why a file is refused: one line, which names it once."""
    with pytest.raises(UnreadableTrace) as caught:
        ingest(path, **options)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert "\n" not in line
    return line.removeprefix(f"{path}: ")


def file(tmp_path: Path, data: bytes, name: str = "t.json") -> Path:
    """A file with these bytes."""
    path = tmp_path / name
    path.write_bytes(data)
    return path


def complained(path: Path) -> tuple[Profile, tuple[str, ...]]:
    """The profile of a file, and its complaints."""
    profile = ingest(path)
    return profile, profile.complaints


def test_a_gzip_file_cut_short_says_where(tmp_path: Path) -> None:
    whole = gzip.compress(PLAIN * 500)
    assert "the gzip file is cut short after" in refused(file(tmp_path, whole[:-300]))
    assert "the gzip file is cut short after 0 unpacked bytes" in refused(file(tmp_path, whole[:12]))


def test_a_spoilt_gzip_file(tmp_path: Path) -> None:
    whole = bytearray(gzip.compress(PLAIN * 500))
    whole[40:60] = bytes(20)
    assert "the gzip file is spoilt after" in refused(file(tmp_path, bytes(whole)))


@pytest.mark.parametrize("kept", [1, 30, 200, len(PLAIN) - 2, len(PLAIN) - 1])
def test_json_cut_short_says_where(kept: int, tmp_path: Path) -> None:
    line = refused(file(tmp_path, PLAIN[:kept]))
    place = int(line.rpartition(" at byte ")[2])
    assert place <= kept
    assert kept - place < 400


def test_json_cut_short_after_many_events_says_where(tmp_path: Path) -> None:
    whole = json.dumps({"traceEvents": step() * 3000}).encode()
    cut = len(whole) * 2 // 3
    place = int(refused(file(tmp_path, whole[:cut])).rpartition(" at byte ")[2])
    assert cut - 400 < place <= cut


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is empty"),
        (b" \n ", "is of no known format"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "is of no known format"),
        (b"{", "cut short at byte 1"),
        (b"[1, 2", "cut short"),
        (b"{}", "no traceEvents"),
        (b'{"a": {"traceEvents": []}}', "no traceEvents"),
        (b'{"traceEvents": 3}', "traceEvents that are not a list at byte 16"),
        (b'{"traceEvents": {"ph": "X"}}', "traceEvents that are not a list"),
        (b'{"traceEvents": []}', "it wrote none of the events"),
        (b'{"traceEvents": [], "traceEvents": null}', "traceEvents that are not a list"),
        (b'{"traceEvents": [{}] "b": 1}', "for ','"),
        (b'{"traceEvents": [{} {}]}', "between two events"),
        (b'{"traceEvents": [{},]}', "expecting value"),
        (b'{"traceEvents": []} trailing', "something behind the end"),
        (b'{"traceEvents": [{"cat": "gc", "ph": "X", "name": "minor"}]}', "it wrote none of the events"),
        (b'[{"name": "Alice"}, {"name": "Bob"}]', "it wrote none of the events"),
        (b'{"traceEvents": [' + b"9" * 5000 + b"]}", "a number too long"),
        (b'{"traceEvents": ["' + b"x" * 300, "unterminated string"),
    ],
)
def test_what_is_no_trace_is_refused(data: bytes, why: str, tmp_path: Path) -> None:
    assert why in refused(file(tmp_path, data))


def test_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    assert refused(tmp_path) == "is a directory, no trace"
    assert refused(tmp_path / "none.json") == "cannot be read (No such file or directory)"


def test_deep_nesting_in_arguments_costs_nothing(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(200):
        deep = {"a": [deep]}
    events = [{**one, "args": {**one["args"], "deep": deep}} for one in step()]
    profile, complaints = complained(written(tmp_path / "t.json", events))
    assert (len(profile.entries), complaints) == (1, ())


def test_endless_nesting_is_refused(tmp_path: Path) -> None:
    assert "nested too deeply" in refused(file(tmp_path, b'{"traceEvents": [' + b"[" * 200_000))
    assert "nested too deeply" in refused(file(tmp_path, b'{"a": ' + b"[" * 200_000))


def with_extra(*extra: Any) -> list[Any]:
    """The small trace, between events that cannot be used."""
    return [*extra, *step(), *extra]


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (kernel(1, 5, float("nan")), "2 kernel events without a time or a duration: left out"),
        (kernel(1, 5, -1.0), "2 kernel events of negative duration: left out"),
        (kernel(1, 5, float("inf")), "2 kernel events at no possible time: left out"),
        (kernel(1, 2.0**63), "2 kernel events at no possible time: left out"),
        (kernel(1, 1 << 63), "2 kernel events at no possible time: left out"),
        (kernel(1, 1 << 200), "2 kernel events at no possible time: left out"),
        (kernel(1, -(1 << 63)), "2 kernel events at no possible time: left out"),
        (kernel(1, "5"), "2 kernel events without a time or a duration: left out"),  # type: ignore[arg-type]
        (kernel(1, 5, name=None), "2 kernel events with a field of the wrong type: left out"),  # type: ignore[arg-type]
        (kernel(1 << 64, 5), "2 kernel events with a field of the wrong type: left out"),
        (kernel(1, 5, device=-1), "2 kernel events with a field of the wrong type: left out"),
        (kernel(1, 5, device="gpu"), "2 kernel events with a field of the wrong type: left out"),
        ({**kernel(1, 5), "ph": "B"}, "2 kernel events without a duration of their own: left out"),
        ({**kernel(1, 5), "args": [1]}, "2 kernel events with a field of the wrong type: left out"),
        ({**launch(1, 5), "args": 7}, "2 cuda_runtime events with a field of the wrong type: left out"),
        ({**op("a", 1, 2), "tid": [1]}, "2 cpu_op events with a field of the wrong type: left out"),
        ({**op("a", 1, 2), "tid": 1.5}, "2 cpu_op events with a field of the wrong type: left out"),
        (event("python_function", "f", 1, -2), "2 python_function events of negative duration: left out"),
        (event("user_annotation", "f", 1 << 70, 2), "2 user_annotation events at no possible time: left out"),
        (7, "2 events that are no objects: left out"),
        ("text", "2 events that are no objects: left out"),
        (None, "2 events that are no objects: left out"),
        ([kernel(1, 5)], "2 events that are no objects: left out"),
        ({"cat": ["kernel"], "ph": "X"}, "2 events whose category is no text: left out"),
    ],
)
def test_an_event_that_cannot_be_used_is_counted_and_costs_no_other(
    bad: Any, complaint: str, tmp_path: Path
) -> None:
    profile, complaints = complained(written(tmp_path / "t.json", with_extra(bad)))
    assert complaints == (complaint,)
    assert [(entry.operator, entry.launches) for entry in profile.entries] == [("aten::mm", 1)]


def test_many_copies_of_one_correlation_id_do_not_explode(tmp_path: Path) -> None:
    events: list[Event] = []
    for number in range(3000):
        events += [launch(5, 10 * number), kernel(5, 10 * number + 5)]
    began = time.monotonic()
    profile, complaints = complained(written(tmp_path / "t.json", events))
    assert time.monotonic() - began < 20
    assert sum(entry.launches for entry in profile.entries) == 3000
    assert complaints[0].startswith("1 correlation ids are of several calls")


def test_a_zip_bomb_is_refused_by_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "FREE_OF_RATIO", 1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    data = packer.compress(b'{"traceEvents": [' + b" " * (20 << 20)) + packer.flush()
    assert "unpacks to more than 400 times its size" in refused(file(tmp_path, data))


def test_a_bound_on_what_is_unpacked(tmp_path: Path) -> None:
    packed = file(tmp_path, gzip.compress(PLAIN), "t.json.gz")
    assert len(ingest(packed, most_bytes=len(PLAIN)).entries) == 1
    assert "unpacks to more than the 100 bytes" in refused(packed, most_bytes=100)
    assert "more than the 100 that are allowed" in refused(file(tmp_path, PLAIN), most_bytes=100)


def test_an_event_larger_than_any_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_events, "MOST_VALUE", 1 << 20)
    events = [op("x" * (3 << 20), 0, 1), *step()]
    assert "no JSON value of at most 1 MiB" in refused(written(tmp_path / "t.json", events))


def test_names_that_are_all_different_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_columns, "MOST_TEXT", 1000)
    events = [op(f"aten::{number:0100}", number, 1) for number in range(20)]
    assert "different texts" in refused(written(tmp_path / "t.json", events))
    secrets = [[f"{number:0100} of alice"] for number in range(20)]  # not kept, and yet remembered
    events = [op("aten::mm", n, 1, Input_Dims=[[1]], Concrete_Inputs=one) for n, one in enumerate(secrets)]
    assert "different texts" in refused(written(tmp_path / "t.json", events))


def test_operations_that_nest_without_end_are_refused(tmp_path: Path) -> None:
    events = [op("aten::x", number, 10_000 - 2 * number) for number in range(600)]
    assert "open at once on a thread" in refused(
        written(tmp_path / "t.json", [*events, launch(1, 1000), kernel(1, 2000)])
    )


def test_huge_texts_are_texts(tmp_path: Path) -> None:
    events = [{**one, "name": one["name"] + "y" * 500_000} for one in step()]
    profile, complaints = complained(written(tmp_path / "t.json", events))
    assert (len(profile.entries[0].kernel), complaints) == (500_001, ())


def test_bytes_that_are_no_utf8_are_replaced_and_said(tmp_path: Path) -> None:
    data = PLAIN.replace(b'"name": "k"', b'"name": "k\xff\xfe"')
    profile, complaints = complained(file(tmp_path, data))
    assert [entry.kernel for entry in profile.entries] == ["k??"]
    assert complaints == ("some texts hold bytes that are no UTF-8: replaced",)


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    data = PLAIN.replace(b'"name": "k"', b'"name": "k\\ud800"')
    assert [entry.kernel for entry in ingest(file(tmp_path, data)).entries] == ["k?"]


def test_control_characters_within_texts_are_taken(tmp_path: Path) -> None:
    data = PLAIN.replace(b'"name": "k"', b'"name": "k\n\x01"')
    assert [entry.kernel for entry in ingest(file(tmp_path, data)).entries] == ["k\n\x01"]


def test_a_character_on_the_edge_of_two_pieces_is_whole(tmp_path: Path) -> None:
    name = "Größe…"
    for shift in range(4):
        filler = "a" * (packed.PIECE - 30 + shift)
        events = [*step(), launch(6, 26), kernel(6, 300, name=name + filler + name * 9)]
        data = json.dumps({"traceEvents": events}, ensure_ascii=False).encode()
        profile, complaints = complained(file(tmp_path, data))
        assert complaints == ()
        assert name + filler + name * 9 in {entry.kernel for entry in profile.entries}


@pytest.mark.parametrize(
    "spoil", [lambda data: data[:-100], lambda data: data.replace(b"}, {", b"}; {", 999)]
)
def test_parts_refuse_as_the_whole_does(
    spoil: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "SMALLEST_PART", 1 << 16)
    trace = {"traceEvents": [{**one, "args": {**one["args"], "n": n}} for n in range(300) for one in step()]}
    data = json.dumps(trace, indent=2).encode()
    path = file(tmp_path, spoil(data.replace(b"\n    },\n    {", b"\n  },\n  {")))
    whole = outcome(lambda: kineto.read(path))
    assert outcome(lambda: kineto.read(path, jobs=2)) == whole
    assert kineto._cuts(path, 2, 1 << 40)


def outcome(read: Callable[[], Reading]) -> Any:
    """What became of a trace."""
    try:
        reading = read()
    except UnreadableTrace as error:
        return str(error)
    assert isinstance(reading.launches, pandas.DataFrame)
    return condense(reading.launches), reading.complaints
