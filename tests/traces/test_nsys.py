"""Exports of Nsight Systems, held against the trace that they were made from."""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from pathlib import Path
from random import Random
from typing import get_args

import pandas
import pytest

from tests.traces.nsys_export import RECORDED, Export, Version, events_of, export
from traces.condense import Condensed, condense
from traces.ingest import ingest
from traces.profile import Entry
from traces.readers import Reading, UnreadableTrace, database, nsys
from traces.readers.ranges import DEEPEST, Range, parse

TRACES = ["llama-prefill", "llama-decode", "moe-prefill", "two-streams", "own-kernels", "llama-tp2-rank1"]
VERSIONS: tuple[Version, ...] = get_args(Version)
PROCESS = (1 << 56) | (500 << 24)


def read(path: Path) -> tuple[Reading, Condensed]:
    reading = nsys.read(path)
    assert not isinstance(reading.launches, Condensed)
    return reading, condense(reading.launches)


def totals(entries: tuple[Entry, ...], name: str) -> dict[str, float]:
    found: dict[str, float] = defaultdict(float)
    for entry in entries:
        found[getattr(entry, name)] += entry.device_us
    return dict(found)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", TRACES)
def test_sums_are_those_of_the_trace_it_was_made_from(tmp_path: Path, name: str, version: Version) -> None:
    reading, found = read(export(name, tmp_path / "a.sqlite", version))
    assert (reading.format, reading.hardware, reading.complaints) == ("nsys", "NVIDIA H200", ())
    raw = pandas.DataFrame([event for event in events_of(name) if event.get("cat", "") == "kernel"])
    by_kernel = raw.groupby("name")["dur"].sum().to_dict()
    kernels = tuple(entry for entry in found.entries if entry.kind == "kernel")
    assert totals(kernels, "kernel") == pytest.approx(by_kernel, rel=1e-9)
    # What torch's own profiler says of each operation.
    rows = json.loads((RECORDED / f"{name}.totals.json").read_text())["rows"]
    profiler = {row["name"]: row["self_device_us"] for row in rows if row["device"] == "CPU"}
    profiler = {op: us for op, us in profiler.items() if us and op != "Activity Buffer Request"}
    ours = totals(found.entries, "operator")
    assert {op: ours.get(op, 0.0) for op in profiler} == pytest.approx(profiler, rel=1e-3)


@pytest.mark.parametrize("name", ["llama-decode", "moe-prefill", "llama-prefill-inductor"])
def test_entries_are_those_of_the_kineto_trace(tmp_path: Path, name: str) -> None:
    """The two readers place every kernel alike: in operations, their callers, shapes and steps."""
    found = []
    for path in (export(name, tmp_path / "a.sqlite"), RECORDED / f"{name}.json.gz"):
        sums: dict[tuple[object, ...], float] = defaultdict(float)
        for entry in ingest(path).entries:
            if entry.kind == "kernel":
                key = (
                    entry.kernel,
                    entry.device,
                    entry.operator,
                    entry.stack,
                    entry.shapes,
                    entry.annotations,
                )
                sums[key] += entry.device_us
        found.append(dict(sums))
    assert found[0] == pytest.approx(found[1], abs=0.01)
    assert len(found[0]) > 10


def test_operations_steps_and_shapes(tmp_path: Path) -> None:
    _, found = read(export("llama-prefill", tmp_path / "a.sqlite"))
    products = [entry for entry in found.entries if entry.operator == "aten::mm"]
    assert {entry.stack for entry in products} >= {("aten::linear", "aten::matmul", "aten::mm")}
    assert {entry.annotations for entry in found.entries} == {("execute_context_1(512)_generation_0(0)",)}
    assert "[[512,512],[512,512]]" in {entry.shapes for entry in products}


def test_overlap_is_counted_once(tmp_path: Path) -> None:
    _, found = read(export("two-streams", tmp_path / "a.sqlite"))
    intervals = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events_of("two-streams")
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    )
    union, reached = 0.0, 0.0
    for start, end in intervals:
        union += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    assert found.devices[0].busy_us == pytest.approx(union, abs=0.05)
    assert sum(entry.device_us for entry in found.entries) > union + 1
    assert {entry.kernel for entry in found.entries if entry.kind == "copy"} == {
        "[CUDA memcpy Device-to-Host]",
        "[CUDA memcpy Host-to-Device]",
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replayed_graph_by_nodes_and_as_one(tmp_path: Path, version: Version) -> None:
    nodes = read(export("llama-decode-graph", tmp_path / "nodes.sqlite", version))[1].entries
    whole = read(export("llama-decode-graph", tmp_path / "graph.sqlite", version, graphs="graph"))[1].entries
    (graph,) = (entry for entry in whole if entry.graph)
    assert (graph.kernel, graph.launches, graph.operator) == ("CUDA graph 7", 3, "")
    assert graph.annotations == ("execute_context_0(0)_generation_8(8)",)
    replayed = [entry for entry in nodes if entry.graph]
    assert sum(entry.launches for entry in replayed) > 300
    assert {entry.annotations for entry in replayed} == {graph.annotations}
    assert sum(entry.busy_us for entry in replayed) < graph.device_us


def test_a_graph_recorded_both_ways_counts_once(tmp_path: Path) -> None:
    made = Export(tmp_path / "a.sqlite", "2025.3")
    launch = {"deviceId": 0, "streamId": 7, "correlationId": 5, "globalPid": PROCESS}
    made.kernel("gemm", start=100, end=200, graphNodeId=3, **launch)
    place = {"start": 90, "end": 210, "contextId": 1, "graphId": 1, "graphExecId": 1}
    made.insert("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", **place, **launch)
    made.close()
    assert [entry.kernel for entry in read(tmp_path / "a.sqlite")[1].entries] == ["gemm"]


def test_processes_threads_and_devices_stay_apart(tmp_path: Path) -> None:
    made = Export(tmp_path / "a.sqlite", "2025.3")
    for process, gpu in ((500, 0), (501, 1)):
        base = (1 << 56) | (process << 24)
        made.insert("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=process, numMultiprocessors=132)
        made.insert("TARGET_INFO_GPU", vmId=0, id=gpu, name=f"GPU {gpu}", busLocation="")
        launch = {"deviceId": 0, "streamId": 7, "correlationId": 9, "globalPid": base}
        made.kernel("gemm", start=100, end=200 + process, **launch)
        call = {"eventClass": 0, "correlationId": 9, "nameId": 1, "returnValue": 0}
        made.insert("CUPTI_ACTIVITY_KIND_RUNTIME", start=50, end=60, globalTid=base | 1, **call)
        made.range(f"of {process}", 10, 70, base | 1)
        made.range("other thread", 10, 70, base | 2)
    made.close()
    reading, found = read(tmp_path / "a.sqlite")
    assert reading.hardware == "GPU 0, GPU 1"
    assert {(entry.device, entry.annotations) for entry in found.entries} == {
        (0, ("of 500",)),
        (1, ("of 501",)),
    }


def test_ranges_that_overlap_and_one_left_open(tmp_path: Path) -> None:
    made = Export(tmp_path / "a.sqlite", "2024.4")
    thread = PROCESS | 1
    made.range("open", 5, None, thread)
    made.range("first", 10, 100, thread, kind=60)
    made.range("second", 50, 200, thread, kind=60)
    made.range("a mark", 60, None, thread, kind=34)
    made.range("backwards", 60, 20, thread)
    for number, at in enumerate((7, 10, 20, 60, 100, 150, 300)):
        launch = {"deviceId": 0, "streamId": 7, "correlationId": number, "globalPid": PROCESS}
        made.kernel(f"k{at}", start=at + 1000, end=at + 1001, **launch)
        call = {"eventClass": 0, "nameId": 1, "returnValue": 0, "globalTid": thread}
        made.insert("CUPTI_ACTIVITY_KIND_RUNTIME", start=at, end=at + 1, correlationId=number, **call)
    made.close()
    found = {entry.kernel: entry.annotations for entry in read(tmp_path / "a.sqlite")[1].entries}
    assert found == {
        "k7": ("open",),
        "k10": ("open", "first"),  # a range is from its start, and up to its end
        "k20": ("open", "first"),
        "k60": ("open", "first", "second"),
        "k100": ("open", "second"),
        "k150": ("open", "second"),
        "k300": ("open",),
    }


def test_very_deep_ranges_are_cut_and_said(tmp_path: Path) -> None:
    made = Export(tmp_path / "a.sqlite", "2025.3")
    for depth in range(DEEPEST + 10):
        made.range(f"r{depth}", depth, 10_000 - depth, PROCESS | 1)
    launch = {"deviceId": 0, "streamId": 7, "correlationId": 1, "globalPid": PROCESS}
    made.kernel("gemm", start=5000, end=5001, **launch)
    call = {"eventClass": 0, "nameId": 1, "returnValue": 0, "globalTid": PROCESS | 1, "correlationId": 1}
    made.insert("CUPTI_ACTIVITY_KIND_RUNTIME", start=4000, end=4001, **call)
    made.close()
    reading, found = read(tmp_path / "a.sqlite")
    assert len(found.entries[0].annotations) == DEEPEST
    assert any("10 ranges" in line for line in reading.complaints)


def test_missing_tables_are_said_and_lose_nothing_else(tmp_path: Path) -> None:
    path = export("llama-decode", tmp_path / "a.sqlite")
    whole = sum(entry.device_us for entry in read(path)[1].entries)
    for table in ("NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "TARGET_INFO_GPU", "StringIds"):
        _change(path, f"DROP TABLE {table}")
        reading, found = read(path)
        assert sum(entry.device_us for entry in found.entries) == pytest.approx(whole)
    assert reading.hardware == ""
    said = " ".join(reading.complaints)
    assert all(
        word in said for word in ("no table NVTX_EVENTS", "no table CUPTI", "names are not in StringIds")
    )


def test_launches_that_are_none_are_counted(tmp_path: Path) -> None:
    path = export("llama-decode", tmp_path / "a.sqlite")
    whole = sum(entry.launches for entry in read(path)[1].entries)
    columns = "contextId, streamId, demangledName, shortName, gridX, blockX, start, end, deviceId"
    for times in (
        "9, 3, 0",
        "'x', 3, 0",
        "1, 2.5, 0",
        "0, 9223372036854775807, 0",
        "1, 2, -1",
        "0, 200000000000000, 0",
    ):
        values = f"VALUES (1, 7, 1, 1, 1, 1, {times})"
        _change(path, f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({columns}) {values}")
    reading, found = read(path)
    assert sum(entry.launches for entry in found.entries) == whole
    assert len(reading.complaints) == 5
    assert sum(int(line.partition(" ")[0]) for line in reading.complaints) == 6


def _change(path: Path, sql: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(sql)
    connection.close()


HOSTILE = {
    "a view that never ends": (
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE"
        " n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end, i AS deviceId,"
        " i AS streamId FROM n",
        "CUPTI_ACTIVITY_KIND_KERNEL is no plain table",
    ),
    "strings from a view": (
        "DROP TABLE StringIds; CREATE VIEW StringIds AS SELECT 1 AS id, zeroblob(1000000000) AS value",
        "StringIds is no plain table",
    ),
    "a column that is computed": (
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL; CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end"
        " INTEGER AS (length(zeroblob(1000000000))), deviceId INTEGER, streamId INTEGER)",
        "CUPTI_ACTIVITY_KIND_KERNEL has no column end",
    ),
    "a table of another's making": (
        "DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL;"
        " CREATE VIRTUAL TABLE CUPTI_ACTIVITY_KIND_KERNEL USING fts5(start)",
        "CUPTI_ACTIVITY_KIND_KERNEL is no plain table",
    ),
    "a name of two megabytes": (
        "UPDATE StringIds SET value = hex(zeroblob(1048576))",
        "cannot be read",
    ),
    "no launches": (
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL; DELETE FROM CUPTI_ACTIVITY_KIND_MEMCPY; "
        "DELETE FROM CUPTI_ACTIVITY_KIND_MEMSET",
        "holds no GPU launch",
    ),
    "a column is missing": (
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL RENAME COLUMN deviceId TO d",
        "CUPTI_ACTIVITY_KIND_KERNEL has no column deviceId",
    ),
    "no table of the GPU": (
        "".join(
            f"DROP TABLE CUPTI_ACTIVITY_KIND_{name};"
            for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")
        ),
        "no Nsight Systems export of GPU work",
    ),
    "a database of ROCm": ("CREATE TABLE rocpd_string_0000 (id INTEGER)", "a rocpd database of ROCm"),
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_hostile_databases_give_one_line(tmp_path: Path, case: str) -> None:
    change, said = HOSTILE[case]
    path = export("own-kernels", tmp_path / "a.sqlite")
    _change(path, change)
    _refused(path, said)


def _refused(path: Path, said: str) -> None:
    with pytest.raises(UnreadableTrace) as raised:
        nsys.read(path)
    message = str(raised.value)
    assert said in message
    assert str(path) in message
    assert "\n" not in message


@pytest.mark.parametrize("kept", [16, 100, 4096, 8192, 20_000, 53_000])
def test_truncated_files_give_one_line(tmp_path: Path, kept: int) -> None:
    whole = export("own-kernels", tmp_path / "a.sqlite").read_bytes()
    assert len(whole) > kept
    path = tmp_path / "cut.sqlite"
    path.write_bytes(whole[:kept])
    _refused(path, "")


def test_what_is_no_database_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    for data in (
        b"",
        b"SQLite format 3\x00",
        b"SQLite format 3\x00" + bytes(range(256)) * 100,
        b"\x00" * 9999,
    ):
        path.write_bytes(data)
        _refused(path, "")
    _refused(tmp_path, "cannot be")
    _refused(tmp_path / "absent.sqlite", "cannot be")


def test_a_query_that_takes_too_long_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MOST_SECONDS", 0.0)
    monkeypatch.setattr(database, "_STEPS", 10)
    _refused(export("own-kernels", tmp_path / "a.sqlite"), "takes more than 0 s to read")


def test_nothing_is_written(tmp_path: Path) -> None:
    path = export("own-kernels", tmp_path / "a.sqlite")
    before = path.read_bytes()
    read(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.sqlite"]
    assert nsys.sniff(before[:64], path)
    assert not nsys.sniff(b'{"traceEvents"', path)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("aten::mm", Range("aten::mm")),  # no tail: whoever made it, not emit_nvtx
        ("aten::mm, op_id = 7", Range("aten::mm", "", True)),
        ("aten::mm, seq = 1, op_id = 7, sizes = [[2, 3], []]", Range("aten::mm", "[[2,3],[]]", True)),
        (
            "aten::mm, op_id = 7, sizes = [[2,3]], input_op_ids = [(1,0), (2,1)]",
            Range("aten::mm", "[[2,3]]", True),
        ),
        ("MmBackward0, seq = 1, op_id = 7", Range("MmBackward0", "", True)),
        ("triton_poi_fused_add_0, op_id = 7, sizes = [[4]]", Range("triton_poi_fused_add_0", "[[4]]", True)),
        ("decode, op_id = 7", Range("decode")),
        ("Torch-Compiled Region: 0/0, op_id = 7", Range("Torch-Compiled Region: 0/0", "", True)),
        ("step, seq = one", Range("step, seq = one")),
        (", seq = 1", Range(", seq = 1")),
        ("aten::mm, op_id = 7, sizes = [[2, 3]", Range("aten::mm", "", True)),
        ("aten::mm, op_id = 7, sizes = [[2 3]]", Range("aten::mm", "", True)),
    ],
)
def test_what_emit_nvtx_writes(text: str, found: Range) -> None:
    assert parse(text) == found


def test_a_long_text_is_parsed_at_once() -> None:
    text = "x, seq = 1" * 100_000
    assert parse(text) == Range(text)


def _failure(path: Path) -> str:
    try:
        nsys.read(path)
    except UnreadableTrace as error:
        return str(error)
    return ""


def test_spoilt_files_never_end_in_anything_but_a_line(tmp_path: Path) -> None:
    """Bytes changed at random, in a fixed order: a profile, or one line."""
    whole = export("own-kernels", tmp_path / "a.sqlite").read_bytes()
    random, refused = Random(7), 0
    path = tmp_path / "spoilt.sqlite"
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(random.choice((1, 3, 30))):
            at = random.randrange(len(data))
            data[at : at + 4] = random.choice(
                (b"\xff\xff\xff\xff", random.randbytes(4), b"\x00" * 4, b"\n';-")
            )
        path.write_bytes(data)
        said = _failure(path)
        assert "\n" not in said
        refused += said != ""
    assert 30 < refused < 300
