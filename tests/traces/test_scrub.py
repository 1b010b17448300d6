"""Scrubbing: secrets of every kind go, and the workload stays."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atrex.errors import UsageError
from tests.traces.nsys_export import RECORDED, Export, Version, export
from traces import scrub as scrubbing
from traces.ingest import ingest
from traces.phases import step_of
from traces.readers import UnreadableTrace
from traces.scrub import NotScrubbed, Report, differs, scrub
from traces.scrub_names import Names

QUICK = {"llama-decode-stacks", "llama-tp2-rank1", "moe-decode-graph", "llama-prefill-inductor"}
NAMES = [
    pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
    for name in sorted(path.name.removesuffix(".json.gz") for path in RECORDED.glob("*.json.gz"))
]

# What must not be found afterwards: pieces of what is planted.
SECRETS = (
    "gpu-node17",
    "acme",
    "alice",
    "/home",
    "/srv",
    "10.20.30.40",
    "fe80::1ff",
    "https:",
    "hf_abcdef",
    "llama-13b",
    "secretmodel",
    "88f1c0de",
    "--model",
    "vllm-worker",
)
HOST = "gpu-node17.acme.example"
PATH = "/home/alice/models/llama-13b/model.safetensors"
URL = "https://alice@acme.example:8080/v1"
ADDRESS = "10.20.30.40 fe80::1ff"
ARGUMENTS = "vllm-worker --model acme/secretmodel HF_TOKEN=hf_abcdef"
TRACE_ID = "88f1c0de88f1c0de"
ALL = (HOST, PATH, URL, ADDRESS, ARGUMENTS, TRACE_ID)


def clean(path: Path, report: Report) -> None:
    """Nothing secret is in a file, packed or not, nor in what is said of it."""
    data = path.read_bytes()
    if path.name.endswith(".gz"):
        data += gzip.decompress(data)
    data += "\n".join(line for line in report.lines() if "written" not in line).encode()
    found = [secret for secret in SECRETS if secret.encode() in data.lower()]
    assert found == []


def secret_kineto(tmp_path: Path) -> Path:
    """A recorded trace, with secrets wherever a writer of traces might put some."""
    whole: dict[str, Any] = json.loads(
        gzip.decompress((RECORDED / "llama-decode-stacks.json.gz").read_bytes())
    )
    whole |= {"traceName": PATH, "trace_id": TRACE_ID, "hostname": HOST, "env": {"HF_TOKEN": ARGUMENTS}}
    whole["distributedInfo"] = {
        "rank": 3,
        "world_size": 8,
        "backend": "nccl",
        "master_addr": ADDRESS,
        "pg_config": [{"pg_desc": HOST}],
    }
    for device in whole["deviceProperties"]:
        device["uuid"] = TRACE_ID
    for number, event in enumerate(whole["traceEvents"]):
        secret = ALL[number % len(ALL)]
        args = event.setdefault("args", {})
        args |= {
            "Concrete Inputs": ["2", secret, *args.get("Concrete Inputs", ())],
            "Process Group Description": secret,
            secret: secret,
        }
        event["cname"] = secret
        if event.get("cat") == "python_function" and "nn.Module" not in event["name"]:
            event["name"] = f"{PATH}(12): forward" if number % 2 else f"{secret} without a form"
        if event.get("cat") == "user_annotation":
            event["name"] += f" for {secret}"  # a step, and more
        if event.get("ph") == "M":
            args |= {"name": secret, "labels": secret}
    first = next(event for event in whole["traceEvents"] if event.get("cat") == "cpu_op")
    place = {name: first[name] for name in ("ph", "pid", "tid")}
    beside = {**place, "ts": first["ts"] - 1e6, "dur": 9e6}
    whole["traceEvents"] += [
        {**beside, "cat": "user_annotation", "name": secret, "args": {}} for secret in ALL
    ]
    whole["traceEvents"] += [
        {**beside, "cat": "cpu_op", "name": f"acme::{secret}", "args": {}} for secret in ALL
    ]
    whole["traceEvents"] += [
        {**beside, "cat": "python_function", "name": f"nn.Module: {secret}_0", "args": {}} for secret in ALL
    ]
    whole["traceEvents"] += [
        {**beside, "cat": HOST, "name": HOST},
        {**beside, "cat": "cuda_runtime", "name": HOST, "args": {"correlation": 1}},
        {"ph": "i", "name": PATH, "pid": HOST, "tid": PATH, "ts": 1.0},
    ]
    path = tmp_path / "secret.json.gz"
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    return path


def secret_nsys(tmp_path: Path) -> Path:
    """An export, with secrets in tables, columns, strings and deleted rows."""
    path = export("llama-decode", tmp_path / "secret.sqlite")
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE ENVIRONMENT (name TEXT, value TEXT)")
    for number, text in enumerate(ALL):
        connection.execute("INSERT INTO ENVIRONMENT VALUES (?, ?)", (text, text))
        connection.execute("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (1, ?, 'Hostname', 1, ?)", (text, text))
        connection.execute("INSERT INTO PROCESSES VALUES (1, 2, ?)", (text,))
        connection.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', ?)", (text,))
        connection.execute("INSERT INTO StringIds VALUES (?, ?)", (100_000 + number, text))
        range_row = "INSERT INTO NVTX_EVENTS (start, end, eventType, textId, text, jsonText, globalTid)"
        thread = connection.execute("SELECT max(globalTid) FROM NVTX_EVENTS").fetchone()[0]
        connection.execute(
            f"{range_row} VALUES (0, 99999999999, 59, ?, NULL, ?, ?)", (100_000 + number, text, thread)
        )
        connection.execute(f"{range_row} VALUES (0, 99999999999, 60, NULL, ?, ?, ?)", (text, text, thread))
        connection.execute(f"{range_row} VALUES (5, NULL, 34, NULL, ?, ?, ?)", (text, text, thread))
    connection.execute("UPDATE TARGET_INFO_GPU SET busLocation = ?", (HOST,))
    connection.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = ?", (PATH,))
    connection.commit()
    connection.execute("DELETE FROM PROCESSES")
    connection.commit()
    connection.close()
    return path


def secret_rocprof(tmp_path: Path) -> Path:
    path = tmp_path / "gpu-node17_1_kernel_trace.csv"
    api = "Domain,Function,Process_Id,Thread_Id,Correlation_Id,Start_Timestamp,End_Timestamp,Extra\n"
    path.write_text(
        "Guid,Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Kernel_Name,Correlation_Id,"
        "Start_Timestamp,End_Timestamp\n"
        + "".join(
            f'{text},{text},Agent 2,140000000{n},{n % 2},70,"gemm<{n}>(float*, int)",{n + 1},'
            f"{5000 + 70 * n},{5100 + 70 * n}\n"
            for n, text in enumerate(ALL)
        )
    )
    beside = path.with_name
    beside("gpu-node17_1_hip_api_trace.csv").write_text(
        api
        + "".join(f"{text},{text},7,70,{n + 1},{100 + n},{101 + n},{text}\n" for n, text in enumerate(ALL))
    )
    ranges = ["prefill", "roctxGetThreadId", '"aten::mm, op_id = 3, sizes = [[4, 4], [4, 4]]"', *ALL]
    beside("gpu-node17_1_marker_api_trace.csv").write_text(
        api
        + "".join(f"MARKER_CORE_RANGE_API,{text},7,70,0,{n},900,{HOST}\n" for n, text in enumerate(ranges))
    )
    beside("gpu-node17_1_memory_copy_trace.csv").write_text(
        "Kind,Direction,Source_Agent_Id,Destination_Agent_Id,Correlation_Id,Start_Timestamp,End_Timestamp\n"
        f"{HOST},MEMORY_COPY_HOST_TO_DEVICE,Agent 0,Agent 2,9,5000,5010\n"
        f"{HOST},{PATH},{HOST},{URL},9,5000,5010\n"
    )
    beside("gpu-node17_1_agent_info.csv").write_text(
        "Node_Id,Logical_Node_Id,Agent_Type,Name,Vendor_Name,Product_Name,Model_Name\n"
        f"0,0,CPU,{HOST},{HOST},{HOST},\n2,2,GPU,gfx942,{HOST},AMD Instinct MI300X,{PATH}\n"
    )
    return path


def secret_csv(tmp_path: Path) -> Path:
    path = tmp_path / "secret.csv"
    rows = "".join(
        f'"gemm<1, 2>",1.5,{10 * n},0,7,aten::mm,"[[4,4]]",'
        f'"[""c10::Half"", ""{text}""]","["""", ""1e-06"", ""{text}""]",'
        f'"[""decode"", ""{text}""]","{PATH}(7): forward",{text}\n'
        f"flash_fwd,2,{10 * n + 5},0,7,{text},,,,{text},{text},{text}\n"
        for n, text in enumerate(ALL)
    )
    head = (
        "kernel,duration_us,start_us,device,stream,operator,shapes,dtypes,scalars,annotations,module,host\n"
    )
    path.write_text(head + rows)
    return path


@pytest.mark.parametrize(
    ("plant", "target"),
    [
        (secret_kineto, "public.json.gz"),
        (secret_kineto, "public.json"),
        (secret_nsys, "public.sqlite"),
        (secret_rocprof, "public_kernel_trace.csv"),
        (secret_csv, "public.csv"),
        (secret_csv, "public.csv.gz"),
    ],
)
def test_secrets_of_every_kind_go(tmp_path: Path, plant: Callable[[Path], Path], target: str) -> None:
    source = plant(tmp_path)
    (tmp_path / "out").mkdir()
    report = scrub(source, tmp_path / "out" / target)
    before, after = ingest(source), ingest(tmp_path / "out" / target)
    said = before.model_dump_json().lower()
    assert "acme" in said, "the profile itself would have told"
    assert sorted(report.files) == sorted((tmp_path / "out").iterdir())
    for file in report.files:
        clean(file, report)
        assert "gpu-node17" not in file.name
    assert not any(secret in after.model_dump_json().lower() for secret in SECRETS)
    assert report.device_us == pytest.approx(before.device_us)
    assert sum(entry.launches for entry in after.entries) == sum(entry.launches for entry in before.entries)
    assert {entry.kernel for entry in after.entries} == {entry.kernel for entry in before.entries}
    assert {entry.shapes for entry in after.entries} == {entry.shapes for entry in before.entries}
    steps = [{step_of(entry.annotations) for entry in profile.entries} for profile in (before, after)]
    assert steps[0] == steps[1] != {None}
    assert report.removed


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_trace_keeps_its_profile(tmp_path: Path, name: str) -> None:
    source = RECORDED / f"{name}.json.gz"
    report = scrub(source, tmp_path / "public.json.gz")
    before, after = ingest(source), ingest(tmp_path / "public.json.gz")
    assert (after.hardware, after.rank, after.world_size) == (before.hardware, before.rank, before.world_size)
    assert after.devices == before.devices
    renamed = {kind for kind in report.removed if kind.endswith(" names")} - {"call names"}
    if not renamed:
        assert after.entries == before.entries
    else:
        assert name in ("llama-decode-stacks", "llama-prefill-inductor", "two-streams")
    text = gzip.decompress((tmp_path / "public.json.gz").read_bytes())
    events = json.loads(text)["traceEvents"]
    assert max(event["pid"] for event in events) <= 3
    assert min(event["ts"] for event in events) < 1e6  # neither a date nor a time since the machine started
    private = (b"/tmp/rec", b"record.py", b"transformers/", b"process_name", b"0x7f", b"baseTime")
    assert not any(word in text for word in private)


def test_a_scrubbed_trace_scrubs_to_itself(tmp_path: Path) -> None:
    scrub(RECORDED / "two-streams.json.gz", tmp_path / "once.json.gz")
    scrub(tmp_path / "once.json.gz", tmp_path / "twice.json.gz")
    assert (tmp_path / "twice.json.gz").read_bytes() == (tmp_path / "once.json.gz").read_bytes()


@pytest.mark.parametrize("version", ["2023.2", "2024.4", "2025.3"])
@pytest.mark.parametrize("graphs", ["node", "graph"])
def test_exports_of_nsys_keep_their_profile(tmp_path: Path, version: Version, graphs: Any) -> None:
    source = export("moe-decode-graph", tmp_path / "a.sqlite", version, graphs)
    scrub(source, tmp_path / "public.sqlite")
    assert ingest(tmp_path / "public.sqlite").entries == ingest(source).entries


def test_processes_of_an_export_keep_their_devices(tmp_path: Path) -> None:
    made = Export(tmp_path / "a.sqlite", "2025.3")
    for process, gpu in ((5001, 0), (5002, 1)):
        base = (1 << 56) | (process << 24)
        made.insert("TARGET_INFO_CUDA_DEVICE", gpuId=gpu, cudaId=0, pid=process, numMultiprocessors=132)
        launch = {"deviceId": 0, "streamId": 7, "correlationId": 9, "globalPid": base}
        made.kernel("gemm", start=100, end=200 + process, **launch)
        call = {"eventClass": 0, "correlationId": 9, "nameId": 1, "returnValue": 0}
        made.insert("CUPTI_ACTIVITY_KIND_RUNTIME", start=50, end=60, globalTid=base | 5009, **call)
        made.range("decode", 10, 70, base | 5009)
    made.close()
    scrub(tmp_path / "a.sqlite", tmp_path / "b.sqlite")
    assert ingest(tmp_path / "b.sqlite").entries == ingest(tmp_path / "a.sqlite").entries
    connection = sqlite3.connect(tmp_path / "b.sqlite")
    owners = connection.execute(
        "SELECT globalTid FROM NVTX_EVENTS UNION SELECT pid FROM TARGET_INFO_CUDA_DEVICE"
    )
    numbers = {part for (owner,) in owners for part in (owner >> 24, owner & 0xFFFFFF, owner)}
    connection.close()
    assert not numbers & {5001, 5002, 5009}


def test_equal_texts_stay_equal_and_others_apart(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text(
        "kernel,duration_us,start_us,annotations\n"
        "a,1,0,for alice\na,2,5,for bob\na,4,10,for alice\na,8,20,range_1\n"
    )
    scrub(source, tmp_path / "b.csv")
    found = {entry.annotations: entry.device_us for entry in ingest(tmp_path / "b.csv").entries}
    assert found == {("range_1",): 5.0, ("range_2",): 2.0, ("range_3",): 8.0}


def test_a_workload_that_would_change_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = secret_csv(tmp_path)
    (tmp_path / "out").mkdir()

    def loses_a_line(old: Path, new: Path, names: Names) -> None:
        new.write_text("".join(old.read_text().splitlines(keepends=True)[:-1]))

    def writes_nothing(old: Path, new: Path, names: Names) -> None:
        new.write_text("")

    for broken, said in ((loses_a_line, "its workload would change"), (writes_nothing, "cannot be read")):
        monkeypatch.setitem(scrubbing.SCRUBBERS, "csv", broken)
        with pytest.raises(NotScrubbed, match=said) as raised:
            scrub(source, tmp_path / "out" / "public.csv")
        assert "\n" not in str(raised.value)
        assert list((tmp_path / "out").iterdir()) == []


def test_every_part_of_a_profile_is_compared() -> None:
    before = ingest(RECORDED / "llama-tp2-rank1.json.gz")
    names = Names()
    assert differs(before, before, names) == ""
    first = before.entries[0]

    def changed(**fields: Any) -> Any:
        return before.model_copy(update={"entries": (first.model_copy(update=fields), *before.entries[1:])})

    for fields in (
        {"kernel": "other"},
        {"operator": "aten::other"},
        {"stack": ()},
        {"shapes": "[]"},
        {"dtypes": "[]"},
        {"annotations": ()},
        {"module": "M"},
        {"graph": not first.graph},
        {"launches": first.launches + 1},
        {"device_us": first.device_us * 1.00001},
        {"busy_us": first.busy_us * 1.00001},
    ):
        assert differs(before, changed(**fields), names) != "", fields
    device = before.devices[0]
    for wrong in (
        {"rank": 0},
        {"world_size": 3},
        {"hardware": "NVIDIA H100"},
        {"format": "csv"},
        {"entries": before.entries[1:]},
        {"devices": ()},
        {"devices": (device.model_copy(update={"span_us": device.span_us * 1.00001}),)},
        {"devices": (device.model_copy(update={"gaps": ()}),)},
    ):
        assert differs(before, before.model_copy(update=wrong), names) != "", wrong


def test_a_step_that_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.csv"
    source.write_text("kernel,duration_us,annotations\na,1,step[EXTEND bs=2 toks=12/alice]\n")
    with pytest.raises(NotScrubbed, match="cannot be cut"):
        scrub(source, tmp_path / "b.csv")
    assert not (tmp_path / "b.csv").exists()


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    source = secret_rocprof(tmp_path)
    with pytest.raises(UsageError, match="exists"):
        scrub(source, source)
    with pytest.raises(UsageError, match="PREFIX_kernel_trace"):
        scrub(source, tmp_path / "public.csv")
    (tmp_path / "public_agent_info.csv").write_text("mine")
    with pytest.raises(UsageError, match="exists"):
        scrub(source, tmp_path / "public_kernel_trace.csv")
    assert (tmp_path / "public_agent_info.csv").read_text() == "mine"
    assert not (tmp_path / "public_kernel_trace.csv").exists()
    with pytest.raises(UsageError, match="cannot be written"):
        scrub(source, tmp_path / "absent" / "public_kernel_trace.csv")


def test_what_is_no_trace_is_said(tmp_path: Path) -> None:
    for name, data in (
        ("a.json", b'{"traceEvents": [{'),
        ("a.sqlite", b"SQLite format 3\x00"),
        ("a.csv", b"x\n"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UnreadableTrace):
            scrub(tmp_path / name, tmp_path / f"public-{name}")
        assert not (tmp_path / f"public-{name}").exists()
