"""Run directories: layout, lookup, and tolerance of broken ones."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from atrex.errors import EnvironmentProblem, UsageError
from atrex.runs import BrokenRun, Run, RunMeta, create_run, find_run, list_runs, now, runs_root, write_atomic


def meta(created: str = "2026-01-02T03:04:05+00:00", operator: str = "rms_norm") -> RunMeta:
    return RunMeta(created=created, command=("atrex", "optimize"), operator=operator, device="cpu", seed=7)


@pytest.fixture
def three(tmp_path: Path) -> list[Run]:
    times = ("2026-01-02T03:04:05+00:00", "2026-01-02T05:04:05+02:00", "2026-02-02T03:04:05+00:00")
    runs = [create_run(tmp_path, meta(time)) for time in times]
    return sorted(runs, key=lambda run: run.name)


def test_a_run_is_laid_out_and_opens_again(tmp_path: Path) -> None:
    run = create_run(tmp_path / "runs", meta())
    assert re.fullmatch(r"20260102T030405Z-rms_norm-cpu-[0-9a-f]{4}", run.name)
    kernel = run.save_kernel("ab12", "source = 1\n")
    run.save_best("one\n")
    run.save_best("two\n")
    run.save_report("json", "{}")
    assert (kernel.relative_to(run.path), run.best.read_text()) == (Path("kernels/ab12.py"), "two\n")
    assert find_run(run.name, tmp_path / "runs") == run
    assert sorted(path.name for path in run.path.iterdir()) == [
        "best.py",
        "kernels",
        "report.json",
        "run.json",
    ]


@pytest.mark.parametrize("name", ["../evil", "", ".hidden", "a/b", "a\n"])
def test_a_candidate_id_never_leaves_the_directory(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="plain name"):
        create_run(tmp_path, meta()).save_kernel(name, "x")


def test_runs_of_one_second_are_told_apart(tmp_path: Path) -> None:
    assert len({create_run(tmp_path, meta()).name for _ in range(40)}) == 40


def test_finding(three: list[Run], tmp_path: Path) -> None:
    first, _, last = three
    assert find_run("latest", tmp_path) == last
    assert find_run("202602", tmp_path) == last
    assert find_run(first.name[-4:], tmp_path) == first
    assert find_run(str(first.path), Path("elsewhere")) == first
    assert find_run(str(first.path / "run.json"), Path("elsewhere")) == first


def test_near_misses_are_named(three: list[Run], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ambiguous") as caught:
        find_run("202601", tmp_path)
    assert three[0].name in str(caught.value)
    assert three[1].name in str(caught.value)
    wrong = three[2].name[:-4] + "zzzz"
    with pytest.raises(UsageError, match=f"did you mean .*{three[2].name}"):
        find_run(wrong, tmp_path)
    with pytest.raises(UsageError, match="the latest is"):
        find_run("@@@@@@", tmp_path)
    with pytest.raises(UsageError, match="no runs yet"):
        find_run("x", tmp_path / "empty")
    with pytest.raises(UsageError, match="no readable run"):
        find_run("latest", tmp_path / "empty")


def test_broken_runs_are_listed_not_crashed(three: list[Run], tmp_path: Path) -> None:
    (three[0].path / "run.json").write_text("{")
    (three[1].path / "run.json").write_text(three[1].meta.model_dump_json().replace('"cpu"', '"tpu"'))
    (tmp_path / "empty").mkdir()
    (tmp_path / "stray.txt").write_text("")
    runs = list_runs(tmp_path)
    broken = {run.name: run.reason for run in runs if isinstance(run, BrokenRun)}
    assert set(broken) == {three[0].name, three[1].name, "empty"}
    assert "field device" in broken[three[1].name]
    assert [run for run in runs if isinstance(run, Run)] == [three[2]]
    assert find_run("latest", tmp_path) == three[2]
    with pytest.raises(UsageError, match="field device"):
        find_run(three[1].name, tmp_path)
    assert list_runs(tmp_path / "none") == []


def test_where_runs_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATREX_RUNS", raising=False)
    assert runs_root() == Path("runs")
    monkeypatch.setenv("ATREX_RUNS", "/elsewhere")
    assert runs_root() == Path("/elsewhere")
    assert runs_root(Path("here")) == Path("here")


def test_an_unwritable_place_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for attempt in (
        lambda: create_run(tmp_path / "file", meta(now())),
        lambda: write_atomic(tmp_path / "file/x", ""),
    ):
        with pytest.raises(EnvironmentProblem, match="cannot write") as caught:
            attempt()
        assert "\n" not in str(caught.value)


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomic(tmp_path / "best.py", "old")

    def power_fails(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", power_fails)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["best.py"]
