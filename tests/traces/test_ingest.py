"""Many files: formats by content, a bad file costs a line, the same result for any number of processes."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atrex.errors import UsageError
from traces import ingest as ingesting
from traces.ingest import Failure, ingest, ingest_all
from traces.profile import Profile, digest_of, load_profiles, save_profiles
from traces.readers import UnreadableTrace

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with two good traces in directories of their own, and three files that are none."""
    for number, name in enumerate(["llama-tp2-rank0", "own-kernels"]):
        (tmp_path / f"rank{number}").mkdir()
        shutil.copy(RECORDED / f"{name}.json.gz", tmp_path / f"rank{number}" / "a.pt.trace.json.gz")
    (tmp_path / "bad.json").write_text('{"traceEvents": [')
    (tmp_path / "cut.json.gz").write_bytes((RECORDED / "own-kernels.json.gz").read_bytes()[:900])
    (tmp_path / "config.json").write_text('{"model": "x"}')
    (tmp_path / "readme.txt").write_text("no trace, and not looked at")
    return tmp_path


def test_one_file() -> None:
    path = RECORDED / "own-kernels.json.gz"
    profile = ingest(path)
    assert (profile.file, profile.format, profile.digest) == (path.name, "kineto", digest_of(path))
    assert profile.hardware == "NVIDIA H200"
    assert profile.device_us == pytest.approx(profile.busy_us)


def test_a_bad_file_costs_one_line_and_nothing_else(place: Path) -> None:
    said: list[str] = []
    found = ingest_all([place], say=said.append)
    assert sorted(profile.rank or 0 for profile in found.profiles) == [0, 0]
    assert [failure.path.name for failure in found.failures] == ["bad.json", "config.json", "cut.json.gz"]
    assert said == [failure.reason for failure in found.failures]
    assert all(reason.startswith(f"{path}: ") for path, reason in found.failures)


def test_any_number_of_processes_gives_the_same(place: Path) -> None:
    alone: list[str] = []
    together: list[str] = []
    assert ingest_all([place], say=alone.append) == ingest_all([place], jobs=3, say=together.append)
    assert alone == together


def test_strict_makes_a_bad_file_an_error(place: Path) -> None:
    for jobs in (1, 2):
        with pytest.raises(UnreadableTrace, match=r"bad\.json: .* at byte 17"):
            ingest_all([place], strict=True, jobs=jobs)


def test_a_file_named_twice_counts_once(place: Path) -> None:
    path = place / "rank1" / "a.pt.trace.json.gz"
    copy = shutil.copy(path, place / "copy.json.gz")
    found = ingest_all([path, path, place / "rank1", Path(copy)])
    assert len(found.profiles) == 1
    assert found.failures == ()


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no traces: name files"):
        ingest_all([])
    with pytest.raises(UnreadableTrace, match=r"holds no file \*\.json"):
        ingest_all([tmp_path], strict=True)
    said: list[str] = []
    found = ingest_all([tmp_path / "none.json"], say=said.append)
    assert found.failures == (Failure(tmp_path / "none.json", said[0]),)


def test_a_directory_without_traces_costs_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    said: list[str] = []
    found = ingest_all([tmp_path / "empty", RECORDED / "own-kernels.json.gz"], say=said.append)
    assert [profile.file for profile in found.profiles] == ["own-kernels.json.gz"]
    assert [failure.path for failure in found.failures] == [tmp_path / "empty"]
    assert said == [found.failures[0].reason]
    assert said[0].startswith(f"{tmp_path}/empty: holds no file *.json")


def test_a_merged_trace_is_left_out_beside_its_ranks(tmp_path: Path) -> None:
    for name in ("merged-17.trace.json.gz", "17-TP-0.trace.json.gz", "merged-18.trace.json.gz"):
        shutil.copy(RECORDED / "own-kernels.json.gz", tmp_path / name)
    said: list[str] = []
    ingest_all([tmp_path], say=said.append)
    assert said == [
        f"{tmp_path}/merged-17.trace.json.gz: left out: it repeats traces of single ranks beside it"
    ]


def test_complaints_are_said(tmp_path: Path) -> None:
    trace = json.loads(gzip.decompress((RECORDED / "own-kernels.json.gz").read_bytes()))
    bad = next(one for one in trace["traceEvents"] if one.get("cat") == "kernel")
    bad["dur"] = -1
    path = tmp_path / "t.json"
    path.write_text(json.dumps(trace))
    said: list[str] = []
    ingest_all([path], say=said.append)
    assert said == [f"{path}: 1 kernel events of negative duration: left out"]


def test_formats_are_found_by_content(tmp_path: Path) -> None:
    base = sqlite3.connect(tmp_path / "looks-like.json")
    base.execute("CREATE TABLE t (a)")
    base.commit()
    base.close()
    with pytest.raises(UnreadableTrace, match="no Nsight Systems export"):
        ingest(tmp_path / "looks-like.json")
    shutil.copy(RECORDED / "own-kernels.json.gz", tmp_path / "looks-like.sqlite")
    assert ingest(tmp_path / "looks-like.sqlite").format == "kineto"


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t.json"
    path.write_text("{}")

    def denied(self: Path, *arguments: object) -> Iterator[bytes]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)  # root may read anything
    with pytest.raises(UnreadableTrace, match=r"t\.json: cannot be read \(Permission denied\)"):
        ingest(path)


def test_a_process_that_dies_costs_its_own_file_only(place: Path) -> None:
    """The reader of one file kills its process, as the system does where memory is short."""
    program = f"""
import os, sys
from pathlib import Path
from traces import ingest as ingesting
real = ingesting._read
def dies(path, jobs, most):
    if path.name == "bad.json":
        os.kill(os.getpid(), 9)
    return real(path, jobs, most)
ingesting._read = dies
if __name__ == "__main__":
    found = ingesting.ingest_all([Path({str(place)!r})], jobs=2)
    print(len(found.profiles), [(one.path.name, one.reason.partition(": ")[2]) for one in found.failures])
"""
    script = place / "program.py"
    script.write_text(program)
    root = Path(ingesting.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(root)}
    )
    assert done.stdout.startswith("2 [('bad.json', 'the process that read it died, as for lack of memory')")


def test_profiles_of_files_survive_the_disk(tmp_path: Path) -> None:
    found = ingest_all([RECORDED / "moe-decode.json.gz", RECORDED / "llama-tp2-rank0.json.gz"])
    save_profiles(found.profiles, tmp_path / "profiles.jsonl.gz")
    assert load_profiles(tmp_path / "profiles.jsonl.gz") == found.profiles
    assert all(isinstance(profile, Profile) for profile in found.profiles)
