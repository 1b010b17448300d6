"""The ledger under kill -9, garbage, a second writer and a newer version."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atrex.errors import EnvironmentProblem, UsageError
from atrex.ledger import DamagedLine, Entry, Ledger, ResultKey, merge_results, read
from atrex.records import Bound, Latency, Result

WRITER = """
import sys
from pathlib import Path
from atrex.ledger import Ledger
with Ledger(Path(sys.argv[1])) as ledger:
    print("open", flush=True)
    number = 0
    while True:
        ledger.append("tick", {"number": number, "filler": "x" * 5000})
        number += 1
"""


def result(case: str, median: float = 2.0, candidate: str = "a", policy: str = "p") -> Result:
    return Result(
        candidate=candidate,
        operator="rms_norm",
        case=case,
        policy=policy,
        accepted=True,
        latency=Latency(median_us=median, p10_us=median, p90_us=median, n=9, method="wall"),
        bound=Bound(sol_us=1.0, attainable_us=None, limiter="memory"),
    )


def numbers(path: Path) -> list[int]:
    return [entry.payload["number"] for entry in read(path, lambda damage: None)]


def start_writer(path: Path) -> subprocess.Popen[str]:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout
    assert writer.stdout.readline() == "open\n"
    return writer


def test_entries_come_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ledger.jsonl"
    with Ledger(path, "H200") as ledger:
        ledger.append("note", {"text": "first\nline \u2028 é \x00"})
        ledger.append("result", result("c1"))
    with Ledger(path) as ledger:  # a resumed run counts on
        ledger.append("note", {"text": "later"})
        entries = list(ledger.entries())
    assert [entry.seq for entry in entries] == [0, 1, 2]
    assert entries[0].payload == {"text": "first\nline \u2028 é \x00"}
    assert [entry.hardware for entry in entries] == ["H200", "H200", ""]
    assert len(path.read_bytes().splitlines()) == 3


@pytest.mark.parametrize(
    "garbage",
    [
        b'{"seq": 1, "time": "2026", "ki',
        b"\x00\x00\x00\xff\xfe",
        b"[" * 100_000,
        b"[1, 2]",
        b'{"seq": NaN}',
        b'{"seq": "x", "time": "t", "kind": "k", "payload": {}}',
        b'{"seq": 1, "time": "t", "kind": "k", "payload": {}, "unknown": 1}',
    ],
    ids=["torn", "binary", "deep", "list", "nan", "type", "field"],
)
def test_a_garbled_line_costs_only_itself(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        ledger.append("tick", {"number": 0})
    before = path.read_bytes()
    path.write_bytes(before + garbage)  # no newline: the writer was killed
    with Ledger(path) as ledger:
        assert [damage.line for damage in ledger.damaged] == [2]
        ledger.append("tick", {"number": 1})
    assert path.read_bytes().startswith(before + garbage + b"\n")  # nothing is rewritten
    assert numbers(path) == [0, 1]
    with pytest.warns(DamagedLine, match=rf"{path.name}:2: skipped"):
        list(read(path))


@given(st.integers(min_value=1, max_value=400))
def test_a_ledger_cut_anywhere_keeps_every_whole_line(cut: int) -> None:
    lines = [
        Entry(seq=n, time="t", kind="tick", payload={"number": n}).model_dump_json().encode()
        for n in range(5)
    ]
    whole = b"\n".join(lines) + b"\n"
    kept = whole[: max(0, len(whole) - cut)]
    complete = [n for n in range(5) if len(b"\n".join(lines[: n + 1])) <= len(kept)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "ledger.jsonl"
        path.write_bytes(kept)
        with Ledger(path) as ledger:
            ledger.append("tick", {"number": 99})
        assert numbers(path) == [*complete, 99]


def test_kill_9_while_writing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    for _ in range(3):
        writer = start_writer(path)
        time.sleep(0.1)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    with Ledger(path) as ledger:
        assert len(ledger.damaged) <= 3
        ledger.append("tick", {"number": -1})
    found = list(read(path, lambda damage: None))
    assert [entry.seq for entry in found] == list(range(len(found)))
    assert found[-1].payload == {"number": -1}


def test_a_second_writer_is_told_who_writes(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    writer = start_writer(path)
    try:
        with pytest.raises(EnvironmentProblem, match=rf"process {writer.pid} .*stop it") as caught:
            Ledger(path)
        assert "\n" not in str(caught.value)
        assert numbers(path) is not None  # reading needs no lock
    finally:
        writer.kill()
        writer.wait()
    Ledger(path).close()  # a dead writer holds nothing


def test_two_writers_in_one_process(tmp_path: Path) -> None:
    with Ledger(tmp_path / "l.jsonl"), pytest.raises(EnvironmentProblem, match=str(os.getpid())):
        Ledger(tmp_path / "l.jsonl")


def test_a_forked_child_neither_writes_nor_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    release, hold = os.pipe()
    waiting, ready = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads of other tests
        child = os.fork()
    if child == 0:
        status = 1
        try:
            ledger.append("tick", {"number": 666})
        except EnvironmentProblem:
            status = 0
        os.close(hold)
        os.write(ready, b"!")
        os.read(release, 1)
        os._exit(status)
    os.read(waiting, 1)
    with pytest.raises(EnvironmentProblem, match="is writing"):
        Ledger(path)  # the parent's lock outlives the child's copy of it
    ledger.append("tick", {"number": 0})
    ledger._drop()  # as the kernel does for a killed parent: closed, not unlocked
    with Ledger(path) as again:  # while the child lives
        again.append("tick", {"number": 1})
    for descriptor in (hold, release, waiting, ready):
        os.close(descriptor)
    assert os.waitpid(child, 0)[1] == 0
    assert numbers(path) == [0, 1]


def test_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(json.dumps({"schema_version": 7, "anything": 1}) + "\n")
    with pytest.raises(UsageError, match=r"ledger.jsonl:1: schema_version 7 .*upgrade"):
        list(read(path))
    with pytest.raises(UsageError, match="schema_version 7"):
        Ledger(path)
    path.write_text("")
    Ledger(path).close()  # the refused attempt left no lock behind


def test_an_unwritable_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentProblem, match=r"cannot write .*--runs or ATREX_RUNS") as caught:
        Ledger(tmp_path / "file" / "ledger.jsonl")
    assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="cannot read the ledger"):
        list(read(tmp_path / "none.jsonl"))


def test_a_full_disk_is_reported_and_the_next_line_starts_afresh(tmp_path: Path) -> None:
    import resource

    path = tmp_path / "ledger.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with Ledger(path) as ledger:
        ledger.append("tick", {"number": 0})
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, hard))
            with pytest.raises(EnvironmentProblem, match="cannot write the ledger"):
                ledger.append("tick", {"number": 1})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, previous)
        ledger.append("tick", {"number": 2})
    assert numbers(path) == [0, 2]


def test_a_payload_that_json_cannot_hold_is_refused_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path) as ledger:
        with pytest.raises(ValueError, match="JSON"):
            ledger.append("tick", {"number": float("nan")})
        ledger.append("tick", {"number": 0})
    assert numbers(path) == [0]


def test_results_merge_by_key_and_the_later_one_counts(tmp_path: Path) -> None:
    with Ledger(tmp_path / "a.jsonl", "H200") as ledger:
        for one in (result("c1", 2.0), result("c1", 3.0), result("c2"), result("c1", policy="q")):
            ledger.append("result", one)
        ledger.append("note", {"text": "no result"})
    with Ledger(tmp_path / "b.jsonl", "CPU") as ledger:
        ledger.append("result", result("c1", 9.0))
    merged = merge_results([*read(tmp_path / "a.jsonl"), *read(tmp_path / "b.jsonl")])
    assert merged[ResultKey("a", "rms_norm", "c1", "H200", "p")] == result("c1", 3.0)
    assert merged[ResultKey("a", "rms_norm", "c1", "CPU", "p")] == result("c1", 9.0)
    assert len(merged) == 4


def test_a_result_that_is_none_names_the_field() -> None:
    entry = Entry(seq=4, time="t", kind="result", payload={**result("c").model_dump(), "policy": 3})
    with pytest.raises(UsageError, match="entry 4: not a result: policy"):
        merge_results([entry])
