"""The command line: exit codes, one line for every error, never a traceback, and JSON that parses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from atrex.cli import main

WORKLOAD = """\
name: mine
provenance: a test
operators:
  rms_norm:
    weight: 0.5
    phases: [decode]
    cases:
      - {shape: 0, init: {eps: 1.0e-6}, input: {token_count: 64, hidden_size: 8}}
"""
EAGER = """\
import torch

class Model(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        return torch.nn.functional.rms_norm(x.float(), x.shape[-1:], weight.float(), self.eps).to(x.dtype)
"""


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Atrex = Callable[..., Said]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in a directory of its own, without this machine's calibration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATREX_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ATREX_RUNS", raising=False)
    monkeypatch.delenv("ATREX_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def atrex(capsys: pytest.CaptureFixture[str]) -> Atrex:
    def run(*arguments: str) -> Said:
        code = main(list(arguments))
        return Said(code, *capsys.readouterr())

    return run


def fails(said: Said, code: int, *parts: str) -> None:
    """One line on standard error that holds these parts, and this exit code."""
    assert said.code == code, said.err
    assert said.err.startswith("atrex: ")
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    assert "Traceback" not in said.err
    for part in parts:
        assert part in said.err


class TestUsage:
    """Exit code 2: the command line, or a file that it names, is wrong."""

    def test_an_unknown_command(self, atrex: Atrex) -> None:
        fails(atrex("optimise"), 2, "optimise")

    @pytest.mark.parametrize(
        "command",
        [
            ["show"],
            ["roofline", "--gpu", "H200"],
            ["optimize", "--op"],
            ["knowledge", "search", "slow", "--op"],
        ],
    )
    def test_an_unknown_operator(self, atrex: Atrex, command: list[str]) -> None:
        fails(atrex(*command, "rms_nrom"), 2, "unknown operator 'rms_nrom'; did you mean rms_norm?")

    @pytest.mark.parametrize("command", ["verify", "measure"])
    def test_a_missing_candidate(self, atrex: Atrex, command: str) -> None:
        fails(atrex(command, "none.py", "--op", "rms_norm"), 2, "none.py: cannot read the candidate file")

    def test_a_missing_option(self, atrex: Atrex) -> None:
        fails(atrex("verify", "K.py"), 2, "--op")

    @pytest.mark.parametrize(
        ("option", "value"), [("--device", "gpu"), ("--level", "deep"), ("--seed", "one")]
    )
    def test_a_bad_option(self, atrex: Atrex, option: str, value: str) -> None:
        fails(atrex("verify", "K.py", "--op", "rms_norm", option, value), 2, option)

    @pytest.mark.parametrize("budget", ["soon", "5x", "0", "-3m", "nan", "1e99h", "m"])
    def test_a_bad_budget(self, atrex: Atrex, directory: Path, budget: str) -> None:
        said = atrex("optimize", "--op", "rms_norm", "--device", "cpu", "--budget", budget)
        fails(said, 2, f"--budget '{budget}'", "90s or 5m")
        assert not (directory / "runs").exists()

    @pytest.mark.parametrize("option", ["--dollars", "--temperature"])
    @pytest.mark.parametrize("amount", ["inf", "nan", "-1", "much"])
    def test_a_bad_amount(self, atrex: Atrex, directory: Path, option: str, amount: str) -> None:
        fails(atrex("optimize", "--op", "rms_norm", "--agent", "claude", option, amount), 2, option)
        assert not (directory / "runs").exists()

    def test_an_option_that_means_nothing_to_a_baseline(self, atrex: Atrex) -> None:
        said = atrex("bench", "--agent", "eager", "--device", "cpu", "--tokens", "5")
        fails(said, 2, "--tokens means nothing to --agent eager")

    def test_an_empty_budget(self, atrex: Atrex) -> None:
        said = atrex("optimize", "--op", "rms_norm", "--device", "cpu", "--budget", "", "--case", "none")
        fails(said, 2, "--budget ''")

    @pytest.mark.parametrize("case", ["99", "rms_norm-99", "", "-1"])
    def test_a_bad_case(self, atrex: Atrex, directory: Path, case: str) -> None:
        (directory / "K.py").write_text(EAGER)
        for command in ("verify", "measure"):
            said = atrex(command, "K.py", "--op", "rms_norm", "--device", "cpu", f"--case={case}")
            fails(said, 2, f"no case '{case}'", "atrex show rms_norm")

    def test_an_unknown_gate(self, atrex: Atrex, directory: Path) -> None:
        (directory / "K.py").write_text(EAGER)
        said = atrex("verify", "K.py", "--op", "rms_norm", "--device", "cpu", "--gate", "acuracy")
        fails(said, 2, "unknown gate 'acuracy'", "accuracy")

    def test_a_negative_timeout(self, atrex: Atrex, directory: Path) -> None:
        (directory / "K.py").write_text(EAGER)
        fails(
            atrex("verify", "K.py", "--op", "rms_norm", "--device", "cpu", "--timeout", "-3"), 2, "--timeout"
        )

    def test_unknown_hardware(self, atrex: Atrex) -> None:
        fails(atrex("roofline", "rms_norm", "--gpu", "H2000"), 2, "did you mean H200?")

    def test_an_unknown_run(self, atrex: Atrex) -> None:
        fails(atrex("report", "yesterday"), 2, "no run 'yesterday' in runs", "atrex optimize")
        fails(atrex("report"), 2, "no readable run in runs")

    def test_a_run_to_resume_that_is_not_there(self, atrex: Atrex) -> None:
        fails(atrex("optimize", "--op", "rms_norm", "--device", "cpu", "--resume", "x"), 2, "no run 'x'")

    def test_runs_that_are_no_directory(self, atrex: Atrex, directory: Path) -> None:
        (directory / "file").write_text("")
        fails(atrex("runs", "--runs", "file"), 2, "file: cannot list the runs")


class TestWorkloadFiles:
    def write(self, old: str = "", new: str = "") -> None:
        assert old in WORKLOAD
        Path("mine.yaml").write_text(WORKLOAD.replace(old, new))

    def test_a_good_one(self, atrex: Atrex) -> None:
        self.write()
        assert [
            case["id"]
            for case in atrex("show", "rms_norm", "--workload", "mine.yaml", "--json").json["cases"]
        ] == ["rms_norm-000"]

    @pytest.mark.parametrize(
        ("old", "new", "field"),
        [
            ("weight: 0.5", "weight: -1", "field operators.rms_norm.weight"),
            ("weight: 0.5", "weigth: 0.5", "field operators.rms_norm.weight"),
            ("phases: [decode]", "phases: [train]", "field operators.rms_norm.phases.0"),
            ("[decode]", "[decode", "not YAML"),
            ("name: mine", "name: mine\nname: yours", "given twice"),
        ],
    )
    @pytest.mark.parametrize("command", ["list", "roofline --gpu H200", "show rms_norm"])
    def test_a_malformed_one(self, atrex: Atrex, command: str, old: str, new: str, field: str) -> None:
        self.write(old, new)
        fails(atrex(*command.split(), "--workload", "mine.yaml"), 2, "mine.yaml: ", field)

    def test_a_missing_one(self, atrex: Atrex) -> None:
        fails(atrex("list", "--workload", "atrex-bensh"), 2, "did you mean atrex-bench?")

    @pytest.mark.parametrize(
        ("old", "new", "named"),
        [
            (", hidden_size: 8", "", "hidden_size"),
            ("hidden_size: 8", "hidden_size: wide", "hidden_size"),
            ("hidden_size: 8", "hidden_size: 0", "hidden_size"),
            ("hidden_size: 8", "hidden_size: 65537", "hidden_size"),
            ("eps: 1.0e-6", "epsilon: 1.0e-6", "epsilon"),
            ("eps: 1.0e-6", "eps: -1.0", "eps"),
        ],
    )
    def test_a_case_that_is_none_of_the_operator(self, atrex: Atrex, old: str, new: str, named: str) -> None:
        self.write(old, new)
        fails(atrex("show", "rms_norm", "--workload", "mine.yaml"), 2, "rms_norm-000", named)


class TestRejected:
    """Exit code 1: the candidate is at fault."""

    @pytest.mark.parametrize(
        ("source", "why"),
        [
            ("def f(:\n", "SyntaxError"),
            pytest.param("import torch\n", "class Model", marks=pytest.mark.slow),
        ],
    )
    def test_a_file_that_is_no_candidate(self, atrex: Atrex, directory: Path, source: str, why: str) -> None:
        (directory / "K.py").write_text(source)
        said = atrex("verify", "K.py", "--op", "rmsnorm", "--device", "cpu", "--case", "7", "--json")
        fails(said, 1, "K.py: not accepted: interface FAIL", why)
        assert said.json["accepted"] is False
        assert said.json["verdicts"][0]["fault"] == "import"

    def test_what_a_candidate_says_stays_on_one_line(self, atrex: Atrex, directory: Path) -> None:
        broken = EAGER.replace(
            "return torch", "raise ValueError('one\\ntwo\\x1b[31m\\rthree')\n        return torch"
        )
        (directory / "K.py").write_text(broken)
        for command in ("verify", "measure"):
            said = atrex(command, "K.py", "--op", "rmsnorm", "--device", "cpu", "--case", "7", "--json")
            fails(said, 1, "one")
            assert said.err.strip().isprintable()


class TestEnvironment:
    """Exit code 3: this machine lacks something."""

    @pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
    @pytest.mark.parametrize("command", ["optimize --op rms_norm", "verify K.py --op rms_norm", "calibrate"])
    def test_no_gpu(self, atrex: Atrex, directory: Path, command: str) -> None:
        (directory / "K.py").write_text(EAGER)
        fails(atrex(*command.split(), "--device", "cuda"), 3, "--device cuda", "--device cpu")

    @pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU has vendor peaks")
    def test_peaks_that_were_never_measured(self, atrex: Atrex) -> None:
        fails(atrex("roofline", "rms_norm"), 3, "atrex calibrate")

    @pytest.mark.parametrize("runs", ["/proc/nowhere", "file", "file/below"])
    def test_an_unwritable_run_directory(self, atrex: Atrex, directory: Path, runs: str) -> None:
        (directory / "file").write_text("")
        said = atrex("optimize", "--op", "rms_norm", "--device", "cpu", "--runs", runs)
        fails(said, 3, runs, "cannot write", "--runs")

    @pytest.mark.slow
    def test_no_compiler(self, directory: Path) -> None:
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "atrex",
                "optimize",
                "--op",
                "rms_norm",
                "--device",
                "cpu",
                "--budget",
                "5s",
            ],
            env={**{k: v for k, v in os.environ.items() if k != "CXX"}, "PATH": ""},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        fails(Said(done.returncode, done.stdout, done.stderr), 3, "compiler", "g++")


class TestAnswers:
    def test_list(self, atrex: Atrex) -> None:
        rows = {row["op"]: row for row in atrex("list", "--json").json}
        assert rows["rms_norm"]["cases"] == 56
        assert rows["rms_norm"]["weight"] == pytest.approx(0.027508)
        shown = atrex("list")
        assert (shown.code, shown.err) == (0, "")
        assert "rms_norm" in shown.out

    def test_show(self, atrex: Atrex) -> None:
        shown = atrex("show", "RMS-Norm", "--json").json
        assert shown["problem"]["operator"] == "rms_norm"
        assert shown["hardware"] == "H200"
        assert len(shown["cases"]) == 56
        assert all(case["sol_us"] > 0 and case["limiter"] == "memory" for case in shown["cases"])
        assert "fp32" in atrex("show", "rms_norm").out

    def test_tables_hold_whole_ids_where_there_is_no_terminal(
        self, atrex: Atrex, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("COLUMNS", raising=False)  # which pytest-xdist sets
        assert "rms_norm-055" in atrex("show", "rms_norm").out

    def test_roofline(self, atrex: Atrex) -> None:
        fast, slow = (atrex("roofline", "rms_norm", "--gpu", gpu, "--json").json for gpu in ("H200", "H20"))
        assert len(fast) == len(slow) == 56
        assert all(a["sol_us"] < b["sol_us"] for a, b in zip(fast, slow, strict=True))
        every = atrex("roofline", "--gpu", "H200", "--json").json
        assert [row for row in every if row["op"] == "rms_norm"] == fast

    def test_no_runs_yet(self, atrex: Atrex) -> None:
        assert atrex("runs", "--json").json == []

    def test_help(self, atrex: Atrex) -> None:
        for command in ([], ["optimize"], ["verify"], ["knowledge", "search"]):
            said = atrex(*command, "--help")
            assert (said.code, said.err) == (0, "")
            assert "Usage" in said.out

    @pytest.mark.parametrize("group", [[], ["knowledge"]])
    def test_no_command_shows_the_help(self, atrex: Atrex, group: list[str]) -> None:
        said = atrex(*group)
        assert "Usage" in said.out + said.err
        assert "atrex: \n" not in said.err


class TestProcess:
    def test_exit_codes_reach_the_shell(self) -> None:
        command = [sys.executable, "-m", "atrex", "show", "rms_nrom"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        fails(Said(done.returncode, done.stdout, done.stderr), 2, "did you mean rms_norm?")
        assert done.stdout == ""

    def test_a_reader_that_goes_away_is_no_error(self) -> None:
        command = (
            f"{sys.executable} -m atrex show rms_norm --json | head -c 10 >/dev/null; exit ${{PIPESTATUS[0]}}"
        )
        done = subprocess.run(
            ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
