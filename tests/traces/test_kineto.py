"""Kineto traces: recorded ones against the profiler's own sums and pandas', and made ones for every join."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest

sys.path.append(str(Path(__file__).parent))

from kineto_made import event, kernel, launch, op, step, written

from traces.condense import COLUMNS, Condensed, condense
from traces.profile import Entry
from traces.readers import Reading, kineto

RECORDED = Path(__file__).parent / "recorded"
NAMES = sorted(path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))
ACTIVITIES = ("kernel", "gpu_memcpy", "gpu_memset")


def read(path: Path) -> tuple[Reading, Condensed]:
    """A trace, and its entries."""
    reading = kineto.read(path)
    assert isinstance(reading.launches, pandas.DataFrame)
    assert set(reading.launches.columns) == set(COLUMNS)
    return reading, condense(reading.launches)


def entries_of(path: Path) -> tuple[Entry, ...]:
    """The entries of a trace without complaints."""
    reading, (entries, _) = read(path)
    assert reading.complaints == ()
    return entries


def raw(name: str) -> pandas.DataFrame:
    """The events of a recorded trace, read another way."""
    events = json.loads(gzip.decompress((RECORDED / f"{name}.json.gz").read_bytes()))["traceEvents"]
    return pandas.DataFrame([one for one in events if one.get("ph") == "X"])


def totals(name: str, device: str) -> dict[str, dict[str, Any]]:
    """The profiler's own table."""
    rows = json.loads((RECORDED / f"{name}.totals.json").read_text())["rows"]
    return {row["name"]: row for row in rows if row["device"] == device}


def repeated(events: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The same events a thousand microseconds later each time, under a correlation id of their own."""
    moved = [{**one, "ts": one["ts"] + 1000 * number} for one in events]
    for one in moved:
        if "correlation" in one["args"]:
            one["args"] = {**one["args"], "correlation": 100 + number}
    return moved


def sums(entries: tuple[Entry, ...], by: str) -> tuple[dict[str, float], dict[str, int]]:
    """Device time and launches by a field."""
    table = pandas.DataFrame([(getattr(one, by), one.device_us, one.launches) for one in entries])
    grouped = table.groupby(0)
    return grouped[1].sum().to_dict(), grouped[2].sum().to_dict()


def test_there_are_recorded_traces() -> None:
    assert len(NAMES) >= 13


@pytest.mark.parametrize("name", NAMES)
def test_time_by_kernel_is_what_the_profiler_says(name: str) -> None:
    times, counts = sums(entries_of(RECORDED / f"{name}.json.gz"), "kernel")
    theirs = totals(name, "CUDA")
    assert times == pytest.approx({kernel: theirs[kernel]["self_device_us"] for kernel in times}, rel=1e-3)
    assert counts == {kernel: theirs[kernel]["count"] for kernel in counts}
    ranges = set(raw(name).query("cat == 'gpu_user_annotation'")["name"])
    assert set(theirs) - set(times) <= ranges


@pytest.mark.parametrize("name", NAMES)
def test_time_by_kernel_is_what_pandas_says(name: str) -> None:
    entries = entries_of(RECORDED / f"{name}.json.gz")
    events = raw(name)
    grouped = events[events["cat"].isin(ACTIVITIES)].groupby("name")["dur"]
    times, counts = sums(entries, "kernel")
    assert times == pytest.approx(grouped.sum().to_dict())
    assert counts == grouped.size().to_dict()


@pytest.mark.parametrize("name", [name for name in NAMES if "graph" not in name])
def test_time_by_operator_is_what_the_profiler_says(name: str) -> None:
    times, _ = sums(entries_of(RECORDED / f"{name}.json.gz"), "operator")
    # The profiler gives a kernel to its own overhead, too, where that was open at the time.
    theirs = {
        operator: row["self_device_us"]
        for operator, row in totals(name, "CPU").items()
        if row["self_device_us"] and operator != "Activity Buffer Request"
    }
    unknown = times.pop("", 0.0)  # of Triton kernels that no operation launches
    assert (unknown > 0) == (name == "own-kernels")
    assert times == pytest.approx(theirs, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_every_launch_has_what_was_recorded(name: str) -> None:
    reading, (entries, devices) = read(RECORDED / f"{name}.json.gz")
    assert reading.hardware == "NVIDIA H200"
    assert sum(entry.busy_us for entry in entries) == pytest.approx(sum(one.busy_us for one in devices))
    assert all(entry.busy_us <= entry.device_us for entry in entries)
    assert all(entry.annotations for entry in entries)
    assert {entry.graph for entry in entries} == {name.endswith("graph")}
    launched = [entry for entry in entries if entry.operator]
    assert all(entry.stack[-1] == entry.operator for entry in launched)
    assert all(bool(entry.shapes) == (name != "llama-decode-plain") for entry in launched)
    assert all(bool(entry.module) == (name == "llama-decode-stacks") for entry in entries)


def test_the_innermost_module_is_the_one_of_the_model() -> None:
    entries = entries_of(RECORDED / "llama-decode-stacks.json.gz")
    modules = {entry.module for entry in entries if entry.operator == "aten::mm"}
    assert modules == {"Linear"}
    assert "LlamaRMSNorm" in {entry.module for entry in entries}


def test_overlap_is_counted_once() -> None:
    _, (entries, (device,)) = read(RECORDED / "two-streams.json.gz")
    assert sum(entry.device_us for entry in entries) > device.busy_us + 10
    assert device.streams == 2
    assert {entry.kind for entry in entries} == {"kernel", "copy"}


def test_ranks_are_known() -> None:
    for rank in range(2):
        reading, (entries, _) = read(RECORDED / f"llama-tp2-rank{rank}.json.gz")
        assert (reading.rank, reading.world_size) == (rank, 2)
        assert any("nccl:all_reduce" in entry.annotations for entry in entries)


def test_one_launch_has_it_all(tmp_path: Path) -> None:
    (entry,) = entries_of(written(tmp_path / "t.json", step()))
    assert entry == Entry(
        kernel="k",
        operator="aten::mm",
        stack=("aten::linear", "aten::mm"),
        shapes="[[2,3],[]]",
        dtypes='["float","Scalar"]',
        annotations=("step 1",),
        launches=1,
        device_us=2.0,
        busy_us=2.0,
    )


def test_the_order_of_events_is_of_no_account(tmp_path: Path) -> None:
    assert entries_of(written(tmp_path / "a.json", step())) == entries_of(
        written(tmp_path / "b.json", step()[::-1])
    )


def test_operations_of_other_threads_and_ended_ones_launch_nothing(tmp_path: Path) -> None:
    others = [
        {**op("aten::other", 0, 100), "tid": 2},
        op("aten::ended", 21, 3),
        op("aten::later", 26, 3),
        {**op("aten::elsewhere", 0, 100), "pid": 8},
    ]
    assert entries_of(written(tmp_path / "t.json", others + step())) == entries_of(
        written(tmp_path / "u.json", step())
    )


def test_shapes_are_those_of_the_nearest_operation_that_has_them(tmp_path: Path) -> None:
    events = [*step(), op("triton_fused", 24, 4)]
    (entry,) = entries_of(written(tmp_path / "t.json", events))
    assert (entry.operator, entry.shapes) == ("triton_fused", "[[2,3],[]]")


def test_scalars_are_those_of_the_operation_with_the_shapes(tmp_path: Path) -> None:
    inner = op("aten::topk", 22, 20, Input_Dims=[[4, 8], []], Concrete_Inputs=["", "2"])
    outer = op("aten::outer", 21, 25, Input_Dims=[[4, 8], []], Concrete_Inputs=["", "7"])
    (entry,) = entries_of(written(tmp_path / "t.json", [*step(), outer, inner, op("no_inputs", 24, 4)]))
    assert (entry.operator, entry.shapes, entry.scalars) == ("no_inputs", "[[4,8],[]]", '["","2"]')
    del inner["args"]["Concrete Inputs"]
    (entry,) = entries_of(written(tmp_path / "t.json", [*step(), outer, inner]))
    assert (entry.operator, entry.scalars) == ("aten::topk", "")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["", "1e-06", "False", "[512, 4096]", "None"], '["","1e-06","False","[512, 4096]","None"]'),
        (["", ""], ""),
        (["/home/alice", "of acme"], ""),
        (["2", "/home/alice", ["3"], 4, None, "[1, x]", "[[1]]"], '["2","","","","","",""]'),
        (["1", f"[{', '.join(['7'] * 64)}]"], f'["1","[{", ".join(["7"] * 64)}]"]'),
        (["1", f"[{', '.join(['7'] * 65)}]"], '["1",""]'),
        (["1", f"[{', '.join(['123456'] * 40)}]"], '["1",""]'),
        (["1"] * 129, ""),
        ("12", ""),
        ({"1": 2}, ""),
    ],
)
def test_numbers_are_all_that_is_kept_of_scalars(tmp_path: Path, given: Any, kept: str) -> None:
    """Twice, as the second time it is remembered."""
    events = step()
    events[2]["args"]["Concrete Inputs"] = given
    entries = entries_of(written(tmp_path / "t.json", [*events, *repeated(events, 1)]))
    assert {(one.operator, one.scalars) for one in entries} == {("aten::mm", kept)}
    assert sum(one.launches for one in entries) == 2


def test_replayed_kernels_have_the_ranges_of_the_replay_and_no_operation(tmp_path: Path) -> None:
    replay = launch(6, 30, "cudaGraphLaunch")
    nodes = [kernel(6, 300 + 10 * number, name="node") for number in range(3)]
    by_node = [launch(7, 31), kernel(7, 400, name="by number", graph_node_id=77)]
    entries = entries_of(written(tmp_path / "t.json", [*step(), replay, *nodes, *by_node]))
    replayed = [entry for entry in entries if entry.graph]
    assert {(entry.kernel, entry.launches) for entry in replayed} == {("node", 3), ("by number", 1)}
    assert all(entry.annotations == ("step 1",) for entry in replayed)
    assert all((entry.operator, entry.stack, entry.shapes) == ("", (), "") for entry in replayed)


def test_hip_calls_launch_too(tmp_path: Path) -> None:
    events = [one for one in step() if one["cat"] != "cuda_runtime"]
    events.append(launch(5, 25, "hipLaunchKernel"))
    events += [launch(6, 26, "hipGraphLaunch"), kernel(6, 300, name="node")]
    entries = entries_of(written(tmp_path / "t.json", events))
    assert {(entry.kernel, entry.operator, entry.graph) for entry in entries} == {
        ("k", "aten::mm", False),
        ("node", "", True),
    }


def test_copies_and_fills_are_launches_and_ranges_on_the_device_are_none(tmp_path: Path) -> None:
    events = [
        *step(),
        launch(6, 26, "cudaMemcpyAsync"),
        {**kernel(6, 300, name="Memcpy HtoD"), "cat": "gpu_memcpy"},
        launch(7, 27, "cudaMemsetAsync"),
        {**kernel(7, 310, name="Memset"), "cat": "gpu_memset"},
        event("gpu_user_annotation", "step 1", 200, 200, pid=0, tid=7),
    ]
    entries = entries_of(written(tmp_path / "t.json", events))
    assert {(entry.kind, entry.kernel) for entry in entries} == {
        ("kernel", "k"),
        ("copy", "Memcpy HtoD"),
        ("fill", "Memset"),
    }


def test_an_external_id_stands_in_for_a_call_and_not_that_of_an_annotation(tmp_path: Path) -> None:
    events = [
        event("user_annotation", "step 1", 0, 100, args={"External id": 3}),
        op("aten::mm", 20, 30, External_id=3),
        kernel(5, 200, External_id=3),
        kernel(6, 300, External_id=99, name="orphan"),
    ]
    reading, (entries, _) = read(written(tmp_path / "t.json", events))
    assert {(entry.kernel, entry.operator, entry.annotations) for entry in entries} == {
        ("k", "aten::mm", ("step 1",)),
        ("orphan", "", ()),
    }
    assert reading.complaints == ("1 launches have no recorded call: their operations are unknown",)


def test_the_call_is_believed_before_the_external_id(tmp_path: Path) -> None:
    events = [*step()[:-1], op("aten::wrong", 70, 5, External_id=3), kernel(5, 200, External_id=3)]
    (entry,) = entries_of(written(tmp_path / "t.json", events))
    assert entry.operator == "aten::mm"


def test_a_correlation_id_of_several_calls_is_the_latest_before(tmp_path: Path) -> None:
    events = [*step(), op("aten::early", 1, 3), launch(5, 2), op("aten::late", 250, 9), launch(5, 255)]
    reading, (entries, _) = read(written(tmp_path / "t.json", events))
    assert [entry.operator for entry in entries] == ["aten::mm"]
    assert reading.complaints == (
        "1 correlation ids are of several calls: the latest before a launch is taken",
    )


def test_clocks_that_disagree_do_not_matter(tmp_path: Path) -> None:
    events = [*step()[:-1], kernel(5, 24.5)]
    (entry,) = entries_of(written(tmp_path / "t.json", events))
    assert entry.operator == "aten::mm"


def test_functions_where_there_is_no_module(tmp_path: Path) -> None:
    functions = [
        event("python_function", "serve.py(12): run", 0, 90),
        event("python_function", "serve.py(40): forward", 15, 60),
    ]
    (entry,) = entries_of(written(tmp_path / "t.json", functions + step()))
    assert entry.module == "serve.py(40): forward"
    modules = [
        event("python_function", "nn.Module: Model_0", 1, 80),
        event("python_function", "nn.Module: LlamaRMSNorm_17", 2, 70),
    ]
    (entry,) = entries_of(written(tmp_path / "u.json", functions + modules + step()))
    assert entry.module == "LlamaRMSNorm"


def test_counters_of_profiler_steps_do_not_tell_launches_apart(tmp_path: Path) -> None:
    events = []
    for number in range(3):
        around = event("user_annotation", f"ProfilerStep#{number}", 1000 * number - 1, 999)
        events += [around, *repeated(step(), number)]
    (entry,) = entries_of(written(tmp_path / "t.json", events))
    assert (entry.launches, entry.annotations) == (3, ("ProfilerStep", "step 1"))


def test_a_merged_trace_is_read_rank_by_rank(tmp_path: Path) -> None:
    events = []
    for rank in range(2):
        for one in step():
            name = f"aten::mm{rank}" if one["name"] == "aten::mm" else one["name"]
            events.append({**one, "name": name, "pid": f"[TP{rank:02}] {one['pid']}"})
    entries = entries_of(written(tmp_path / "merged.json", events))
    assert {(entry.device, entry.operator) for entry in entries} == {(0, "aten::mm0"), (1, "aten::mm1")}


def layouts(trace: dict[str, Any]) -> dict[str, str]:
    """The same trace as different programs write it."""
    events = trace["traceEvents"]
    turned = [dict(reversed(one.items())) for one in events]
    return {
        "compact": json.dumps(trace, separators=(",", ":")),
        "json.dump": json.dumps(trace),
        "indented": json.dumps(trace, indent=1),
        "tabs": json.dumps(trace, indent="\t"),
        "events first": json.dumps({"traceEvents": events, **trace}),
        "other fields first": json.dumps({**trace, "traceEvents": turned}),
        "a bare list": json.dumps(events),
        "a mark before": "\ufeff" + json.dumps(trace),
        "a nested decoy": json.dumps({"note": {"traceEvents": [1]}, **trace}),
    }


@pytest.mark.parametrize("layout", list(layouts({"traceEvents": []})))
def test_any_layout_gives_the_same(layout: str, tmp_path: Path) -> None:
    source = RECORDED / "moe-prefill.json.gz"
    trace = json.loads(gzip.decompress(source.read_bytes()))
    path = tmp_path / "t.json"
    path.write_text(layouts(trace)[layout])
    assert read(path)[1] == read(source)[1]


def test_texts_that_look_like_seams_are_texts(tmp_path: Path) -> None:
    name = 'a}, {"ph": "X"},{"name"\n  },\n  {\n    "ph"'
    nested = {"objects": [{"ph": 1}, {"ph": 2}, {"name": 3}]}
    events = [{**one, "name": name, "args": {**one["args"], **nested}} for one in step()] * 1500
    events = [{**one, "ts": one["ts"] + 1000 * number} for number, one in enumerate(events)]
    path = written(tmp_path / "t.json", events)
    assert path.stat().st_size > 1 << 20
    _, (entries, _) = read(path)
    assert sum(entry.launches for entry in entries) == 1500


def test_an_operation_without_shapes_has_none_in_any_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of later parts are numbered behind those of the first; "no shapes" must not become one."""
    monkeypatch.setattr(kineto, "SMALLEST_PART", 1 << 16)
    one = [*step(), op("triton_fused", 24, 4)]
    events = [each for number in range(300) for each in repeated(one, number)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": events}, indent=1))
    assert len(kineto._cuts(path, 2, 1 << 40)) == 1
    parted = kineto.read(path, jobs=2)
    assert isinstance(parted.launches, pandas.DataFrame)
    (entry,) = condense(parted.launches).entries
    assert (entry.launches, entry.shapes) == (300, "[[2,3],[]]")


def test_parts_give_what_the_whole_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "SMALLEST_PART", 1 << 16)
    path = tmp_path / "t.json"
    path.write_bytes(gzip.decompress((RECORDED / "moe-prefill.json.gz").read_bytes()))
    assert len(kineto._cuts(path, 3, 1 << 40)) == 2
    whole, parted = kineto.read(path), kineto.read(path, jobs=3)
    assert isinstance(whole.launches, pandas.DataFrame)
    assert isinstance(parted.launches, pandas.DataFrame)
    assert condense(parted.launches) == condense(whole.launches)
    assert (parted.hardware, parted.complaints) == (whole.hardware, whole.complaints)
