"""benchmarks/repeat.py: what is right passes each time, and what is wrong is counted with its seed."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from atrex.errors import UsageError, run_script
from atrex.judge import HarnessError

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
repeat: Any = importlib.import_module("repeat")
calibration: Any = importlib.import_module("calibration")

WRONG = next(m for m in calibration.mutants() if m.name == "rms_norm/cpp/returns_fp32")


@pytest.mark.slow
def test_a_rejection_is_counted_with_its_seed(tmp_path: Path) -> None:
    wrong = repeat.Task("rms_norm", WRONG, ("interface",), (4, 5), "cpu", "screen", float("inf"))
    right = repeat.Task("l2_norm", None, ("interface",), (4, 5), "cpu", "screen", float("inf"))
    page = tmp_path / "page.md"
    assert not repeat.run([wrong, right], 1, "cpu", "the command", page)
    said = page.read_text(encoding="utf-8")
    assert "**2 of 4 judgements reject**" in said
    assert "| rms_norm/cpp/returns_fp32 | 2 | 2 |" in said
    assert "| l2_norm/eager | 2 | 0 |" in said
    assert "- rms_norm/cpp/returns_fp32, seed 5, interface: FAIL out is float32" in said


@pytest.mark.slow
def test_a_rejection_shows_what_was_expected_and_what_came(tmp_path: Path) -> None:
    swallowed = next(m for m in calibration.mutants() if m.name == "rms_norm/cpp/nan_swallowed")
    task = repeat.Task("rms_norm", swallowed, ("specials",), (4,), "cpu", "screen", float("inf"))
    page = tmp_path / "page.md"
    repeat.run([task], 1, "cpu", "the command", page)
    (line,) = (line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("- "))
    assert re.search(r"FAIL .* \(token_count=\S+: out\[\d+, \d+\] expected nan .*, got ", line), line


def test_no_judgement_begins_after_its_time(tmp_path: Path) -> None:
    late = repeat.Task("l2_norm", None, ("interface",), (4, 5), "cpu", "screen", 0.0)
    task, judgements = repeat.judge(late)
    assert (task, judgements) == (late, [])


def test_every_honest_kernel_and_every_operator_has_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    asked = repeat.command_line().parse_args(["--times", "7"])
    todo = repeat.tasks(asked)
    honest = [s.name for s in calibration.honest_kernels() if s.runs_on("cpu")]
    eager = [f"{operator}/eager" for operator in repeat.operators()]
    assert [task.name for task in todo] == [*honest, *eager] * 2
    assert {task.seeds for task in todo} == {(0, 1, 2, 3, 4), (5, 6)}
    assert not any("authenticity" in task.gates for task in todo if task.specimen is None)
    with pytest.raises(SystemExit):
        repeat.main(["--gate", "no_such_gate"])
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["repeat", "sweep", "calibration"])
def test_a_run_over_nothing_is_no_success(script: str) -> None:
    main = importlib.import_module(script).main
    with pytest.raises(UsageError, match="nothing in the calibration set"):
        main(["--match", "no such kernel"])


def test_a_run_without_a_judgement_is_no_success() -> None:
    late = repeat.Task("l2_norm", None, ("interface",), (4, 5), "cpu", "screen", 0.0)
    assert not repeat.run([late], 1, "cpu", "the command", None)


@pytest.mark.parametrize("script", ["repeat", "sweep", "calibration", "negative_control"])
def test_an_unknown_operator_is_one_line(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    option = [] if script == "negative_control" else ["--op"]
    monkeypatch.setattr(sys, "argv", [f"{script}.py", *option, "nope"])
    with pytest.raises(SystemExit) as ended:
        run_script(importlib.import_module(script).main)
    assert ended.value.code == 2
    assert "nope" in capsys.readouterr().err.splitlines()[-1]


def examine(specimen: Any, alone: bool) -> str:
    """What a machine with room for one at a time finds of two specimens; the third it never can."""
    if specimen.operator == "l2_norm" or not alone:
        raise HarnessError("no memory")
    return f"{specimen.name} alone"


@pytest.mark.slow
def test_what_neighbours_disturbed_is_examined_alone(capfd: pytest.CaptureFixture[str]) -> None:
    chosen = [one for one in calibration.honest_kernels() if one.name.endswith("norm/cpp/vector_rows")][:3]
    found = dict[str, str]()
    calibration.campaign(chosen, examine, 2, lambda one, what: found.update({one.name: what}))
    never = [one.name for one in chosen if one.operator == "l2_norm"]
    assert found == {one.name: f"{one.name} alone" for one in chosen if one.name not in never}
    assert len(never) == 1
    assert f"??? {never[0]}: HarnessError: no memory" in capfd.readouterr().err
