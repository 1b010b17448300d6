"""Whole judgements of foreign kernels, in their workers: right ones are accepted, wrong ones are not."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atrex.cli import main
from atrex.commands.common import operator_cases
from atrex.foreign.adapters import ADAPTERS, Format
from atrex.foreign.audit import KERNEL, Plan, judge_item
from atrex.foreign.client import UnusableReference
from atrex.foreign.messages import Source
from atrex.foreign.rates import Row
from atrex.foreign.verify import Settings, judge, problems
from atrex.judge import Engine, Timeouts
from atrex.ledger import read
from atrex.problem import load_problem
from atrex.records import Case

from .conftest import KERNEL as SCALE_SHIFT
from .conftest import SLIGHTLY_WRONG, TASK

FEW = ("interface", "authenticity", "accuracy", "shapes")


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(
        "cpu", threads=1, timeouts=Timeouts(load=120, call=120, interpreted=120, round=120)
    ) as engine:
        yield engine


def rows(engine: Engine, format: Format, directory: Path, gates: tuple[str, ...] = FEW) -> dict[str, Row]:
    settings = Settings(level="screen", gates=gates, seed=5, keep_going=True)
    found = list(ADAPTERS[format](directory))
    plan = Plan(items=found, settings=settings, jobs=1, cases=lambda operator: ())
    return {item.id: judge_item(item, plan, engine) for item in found}


def failed(row: Row) -> set[str]:
    return {verdict.gate for verdict in row.failures}


def statuses(row: Row) -> dict[str, str]:
    return {v.gate: v.status.value for judgement in row.judgements for v in judgement.verdicts}


def test_kernelbench_samples(engine: Engine, kernelbench: Path) -> None:
    right, wrong, fallback, cuda = rows(engine, "kernelbench", kernelbench).values()
    assert failed(right) == set(), right.reason
    assert statuses(right)["shapes"] == "UNSUPPORTED"
    assert failed(wrong) == {"accuracy"}
    assert failed(fallback) == {"authenticity"}
    assert (cuda.state, "needs CUDA" in cuda.reason) == ("unusable", True)
    (witness,) = (verdict.witness for verdict in wrong.failures)
    assert witness is not None
    assert "--reference" in witness.command


def test_tritonbench_kernels(engine: Engine, tritonbench: Path) -> None:
    got = rows(engine, "tritonbench-t", tritonbench, ("interface", "accuracy"))
    (first, second) = got.values()
    assert failed(first) == set(), first.reason
    assert len(first.judgements) == 2  # a tensor and a number as the second argument
    assert failed(second) == {"accuracy"}


@pytest.mark.slow
def test_kernelbenchx_predictions(engine: Engine, kernelbenchx: Path) -> None:
    right, wrong, absent = rows(engine, "kernelbenchx", kernelbenchx, ("interface", "accuracy")).values()
    assert failed(right) == set(), right.reason
    assert failed(wrong) == {"accuracy"}
    assert absent.state == "unusable"


@pytest.mark.slow
def test_gpuemu_kernels(engine: Engine, gpuemu: Path) -> None:
    control, buggy = rows(
        engine, "gpuemu", gpuemu, ("interface", "authenticity", "accuracy", "shapes")
    ).values()
    assert failed(control) == set(), control.reason
    assert statuses(control)["shapes"] == "PASS"
    assert failed(buggy) == {"accuracy", "shapes"}


@pytest.mark.slow
def test_candidates_of_our_operators(engine: Engine, write: Callable[[dict[str, str]], Path]) -> None:
    honest = Path(__file__).resolve().parent.parent / "honest" / "rms_norm" / "triton" / "two_passes.py"
    right = honest.read_text()
    wrong = right.replace("value * scale * gain", "value * scale * (gain + 0.01)")
    assert wrong != right
    directory = write({"rms_norm/right.py": right, "rms_norm/wrong.py": wrong})
    found = list(ADAPTERS["atrex-bench"](directory))

    def cases(operator: str) -> tuple[Case, ...]:
        problem = load_problem(operator)
        return tuple(problem.small(case) for case in operator_cases("atrex-bench", operator)[:2])

    plan = Plan(found, Settings(level="screen", gates=("interface", "accuracy"), seed=5), 1, cases)
    good, bad = (judge_item(item, plan, engine) for item in found)
    assert failed(good) == set(), good.reason
    assert failed(bad) == {"accuracy"}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_gate_on_a_right_kernel(engine: Engine, kernelbench: Path) -> None:
    (item, *_) = ADAPTERS["kernelbench"](kernelbench)
    plan = Plan([item], Settings(level="full", keep_going=True), 1, lambda operator: ())
    row = judge_item(item, plan, engine)
    assert row.state == "accepted", row.reason


REFUSED = {
    "random": ("def reference(x):\n    return torch.nn.functional.dropout(x)\n", "differs from call to call"),
    "hides": ("def reference(x):\n    y = x.add_(1)\n    return y * 2\n", "writes to its input"),
    "crashes": ("import os\ndef reference(x):\n    os._exit(0)\n", "does not run"),
    "reads": ("open('/etc/shadow').read()\ndef reference(x):\n    return x\n", "does not run"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_references_that_cannot_be_one(engine: Engine, name: str) -> None:
    body, reason = REFUSED[name]
    text = f"import torch\n{body}\ndef get_inputs():\n    return [torch.randn(4, 9)]\n"
    with (
        pytest.raises(UnusableReference, match=reason),
        problems(engine, name, Source(text=text), "", "--reference r.py"),
    ):
        pass


def test_a_reference_that_dies_later_is_inconclusive(engine: Engine) -> None:
    """It answers the calls of the inference, and then no more: nobody is rejected for it."""
    text = """
import os
import torch

calls = []


def reference(x):
    calls.append(1)
    if len(calls) > 6:
        os._exit(3)
    return x * 2


def get_inputs():
    return [torch.randn(4, 9)]
"""
    kernel = "def kernel_function(x):\n    return x * 2\n"
    with problems(engine, "dies", Source(text=text), kernel, "--reference r.py") as (problem,):
        settings = Settings(level="screen", gates=("accuracy",), keep_going=True)
        for _ in range(3):
            (verdict,) = judge(engine, problem, kernel, settings).verdicts
            assert verdict.status.value in ("PASS", "INCONCLUSIVE")
        assert (verdict.status.value, "does not return" in verdict.reason) == ("INCONCLUSIVE", True)


@pytest.mark.slow
def test_verify_prints_a_contract_that_it_takes_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference, kernel, contract = tmp_path / "r.py", tmp_path / "k.py", tmp_path / "c.yaml"
    reference.write_text(TASK)
    kernel.write_text(SLIGHTLY_WRONG)
    command = ["verify", str(kernel), "--reference", str(reference), "--device", "cpu", "--level", "screen"]
    assert main([*command, "--print-contract"]) == 0
    text = capsys.readouterr().out
    loose = re.sub(r"rounding_steps: \d+", "rounding_steps: 100000", text)
    assert loose != text
    contract.write_text(text)
    assert main([*command, "--contract", str(contract), "--gate", "accuracy"]) == 1
    contract.write_text(loose)
    assert main([*command, "--contract", str(contract), "--gate", "accuracy"]) == 0
    reference.write_text(TASK.replace("shift", "offset"))
    capsys.readouterr()
    assert main([*command, "--contract", str(contract)]) == 2
    assert "the contract is for" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_an_audit_survives_kill_9(kernelbench: Path, tmp_path: Path) -> None:
    for i in range(4, 7):
        path = kernelbench / "runs" / f"level_1_problem_19_sample_{i}_kernel.py"
        path.write_text(f"{SCALE_SHIFT}\n# {i}\n")
    runs = tmp_path / "runs"
    command = [sys.executable, "-m", "atrex", "audit", str(kernelbench), "--format", "kernelbench"]
    command += ["--device", "cpu", "--jobs", "2", "--runs", str(runs)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not _rows(runs) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = _rows(runs)
    assert 1 <= len(before) < 7
    (run,) = runs.iterdir()
    done = subprocess.run(
        [*command, "--resume", run.name, "--json"], capture_output=True, text=True, check=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    after = _rows(runs)
    assert len(after) == len({row["digest"] for row in after}) == 7
    assert after[: len(before)] == before
    assert [row["state"] for row in report["rows"]].count("accepted") == 4
    assert report["summary"]["any_gate"]["k"] == 2
    assert (run / "audit.html").read_text().startswith("<!doctype html>")


def _rows(runs: Path) -> list[dict[str, Any]]:
    return [e.payload for path in runs.glob("*/ledger.jsonl") for e in read(path) if e.kind == KERNEL]
