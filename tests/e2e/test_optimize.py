"""The main job from the command line, small: a real search, a kill, a resume, and the promised JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

KEYS = {
    "op",
    "device",
    "dsl",
    "accepted",
    "kernel",
    "candidates_tried",
    "candidates_accepted",
    "speedup_vs_eager",
    "speedup_vs_compile",
    "S",
    "A",
    "verdicts",
    "run",
    "seconds",
}
CASES = [argument for number in (15, 47) for argument in ("--case", str(number))]


def atrex(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "atrex", *arguments]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(atrex(*arguments), capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed with SIGKILL after its first proposals."""
    runs = tmp_path_factory.mktemp("runs")
    command = atrex("optimize", "--op", "rmsnorm", "--device", "cpu", "--budget", "10m", "--seed", "7")
    process = subprocess.Popen(
        [*command, *CASES, "--runs", str(runs)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        ledgers = list(runs.glob("*/ledger.jsonl"))
        if ledgers and ledgers[0].read_text().count('"kind":"settled"') >= 2:
            break
        time.sleep(0.2)
    assert process.poll() is None, "the run ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return next(runs.iterdir())


@pytest.fixture(scope="module")
def resumed(killed: Path) -> dict[str, Any]:
    before = (killed / "ledger.jsonl").read_bytes()
    (killed / "ledger.jsonl").open("ab").write(b'{"seq": 99, "kind": "sea')  # and a line cut short
    done = run(
        "optimize",
        "--op",
        "rmsnorm",
        "--resume",
        killed.name,
        "--runs",
        str(killed.parent),
        "--steps",
        "3",
        "--json",
    )
    assert done.returncode == 0, done.stderr
    assert (killed / "ledger.jsonl").read_bytes().startswith(before), "a ledger is only ever appended to"
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_killed_run_resumes_to_an_accepted_kernel(resumed: dict[str, Any]) -> None:
    assert set(resumed) >= KEYS
    assert resumed["accepted"] is True
    assert resumed["device"] == "cpu"
    assert resumed["dsl"] == "cpp"
    assert resumed["verdicts"].pop("gradients") == "UNSUPPORTED"  # it has no backward, and needs none
    assert set(resumed["verdicts"].values()) == {"PASS"}
    assert len(resumed["verdicts"]) == 12
    assert resumed["candidates_tried"] >= resumed["candidates_accepted"] >= 1
    assert {"median", "low", "high"} <= set(resumed["speedup_vs_eager"])
    assert resumed["speedup_vs_compile"] is not None
    assert resumed["S"] > 0
    assert resumed["A"] > 0


def test_the_kernel_stands_alone(resumed: dict[str, Any]) -> None:
    """The file that a run ends with is accepted by `verify` like any other, under a fresh seed."""
    where = ("--op", "rms_norm", "--device", "cpu", "--level", "screen", *CASES)
    done = run("verify", resumed["kernel"], *where, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accepted"] is True


def test_reports_of_the_run(resumed: dict[str, Any], killed: Path) -> None:
    for form, mark in (("markdown", "rms_norm"), ("html", "<html"), ("json", '"op"')):
        done = run("report", killed.name, "--runs", str(killed.parent), "--format", form)
        assert done.returncode == 0, done.stderr
        assert mark in done.stdout
    listed = run("runs", "--runs", str(killed.parent), "--json")
    assert json.loads(listed.stdout)[0]["run"] == killed.name
