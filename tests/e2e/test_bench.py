"""`atrex bench` from the command line on reduced shapes: a run, its forms, a kill and a resume."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atrex.cli import main
from atrex.report.workload import WORKLOAD_HEADLINE
from atrex.runs import RunMeta, create_run, now

SMALL = ("--scale", "small", "--device", "cpu")
TWO = ("--ops", "rms_norm,silu_and_mul", "--cases", "2", *SMALL)


@pytest.fixture
def atrex(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return run


def results(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "ledger.jsonl").read_bytes().splitlines()
    entries = [json.loads(line) for line in lines if line.endswith(b"}")]
    return [entry["payload"] for entry in entries if entry["kind"] == "result"]


def test_a_baseline_from_command_to_report(
    atrex: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code, out, err = atrex("bench", "--agent", "eager", *TWO, "--runs", str(tmp_path), "--json")
    assert code == 0, err
    report = json.loads(out)
    assert tuple(report)[: len(WORKLOAD_HEADLINE)] == WORKLOAD_HEADLINE
    assert 0 < report["S"] < 2
    assert (report["coverage"], report["scale"]) == (1.0, "small")
    assert [(row["op"], row["measured"], row["cases"]) for row in report["operators"]] == [
        ("rms_norm", 2, 2),
        ("silu_and_mul", 2, 2),
    ]
    assert sum(row["weight"] for row in report["operators"]) == pytest.approx(0.0275 + 0.0176, abs=1e-3)
    run = Path(report["run"])
    before = results(run)
    assert len(before) == 4

    code, out, _ = atrex("runs", "--runs", str(tmp_path), "--json")
    assert (code, json.loads(out)[0]["op"], json.loads(out)[0]["state"]) == (0, "bench-eager", "reported")
    for form, part in [("terminal", "REDUCED SHAPES"), ("markdown", "## Operators"), ("html", "<!doctype")]:
        code, out, _ = atrex("report", run.name, "--runs", str(tmp_path), "--format", form)
        assert code == 0
        assert part in out

    code, out, err = atrex("bench", "--resume", run.name, "--runs", str(tmp_path), "--json")
    assert code == 0, err
    assert results(run) == before, "nothing is measured twice"
    assert json.loads(out)["S"] == report["S"]


def test_what_is_wrong_is_one_line_and_leaves_no_run(
    atrex: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    runs = ("--runs", str(tmp_path / "runs"))
    for arguments, said in [
        ((), "--agent is missing"),
        (("--agent", "eagre"), "unknown agent 'eagre'; did you mean eager?"),
        (("--agent", "eager", "--ops", "rms_nrom"), "unknown operator 'rms_nrom'; did you mean rms_norm?"),
        (("--agent", "eager", "--budget", "soon"), "--budget 'soon'"),
        (("--agent", "replay:/nowhere"), "there is no such directory"),
        (("--agent", "eager", "--workload", "none"), "no workload 'none'"),
        (("--resume", "none"), "no run 'none'"),
    ]:
        code, _, err = atrex("bench", *arguments, *SMALL, *runs)
        assert code == 2, err
        assert err.startswith("atrex: ")
        assert said in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_killed_benchmark_goes_on(atrex: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "atrex", "bench", "--agent", "eager", *TWO, "--runs", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        folders = list(tmp_path.iterdir())
        if folders and (folders[0] / "ledger.jsonl").exists() and results(folders[0]):
            break
        time.sleep(0.02)
    assert process.poll() is None, "the run ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (run,) = tmp_path.iterdir()
    before = results(run)
    assert 1 <= len(before) < 4
    code, out, err = atrex("bench", "--resume", "latest", "--runs", str(tmp_path), "--json")
    assert code == 0, err
    assert results(run)[: len(before)] == before
    assert len(results(run)) == 4
    assert json.loads(out)["measured"] == pytest.approx(1)


def test_a_run_that_does_not_say_what_it_was_to_do(
    atrex: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    meta = RunMeta(
        created=now(), command=("atrex",), operator="bench-eager", device="cpu", seed=1,
        budget={"agent": "eager", "workload": "atrex-bench", "ops": "", "cases": None, "phase": None,
                "scale": "huge", "gates": "full", "beside_eager": False},
    )  # fmt: skip
    run = create_run(tmp_path, meta)
    code, _, err = atrex("bench", "--resume", run.name, "--runs", str(tmp_path))
    assert (code, err.strip()) == (2, f"atrex: {run.path / 'run.json'}: field budget.scale: not readable")
