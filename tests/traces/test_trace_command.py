"""`atrex trace` on the recorded traces, end to end: exit codes, one line an error, files that others read."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import fsum
from pathlib import Path
from typing import Any

import pytest

from atrex.cli import main
from tests.traces.made import Part, made, norm
from traces.profile import load_profiles, save_profiles
from traces.workload import load_workload

RECORDED = Path(__file__).parent / "recorded"
TRACES = sorted(RECORDED.glob("*.json.gz"))
LLAMA, MOE = "llama=300", "moe=100"


@dataclass(frozen=True)
class Said:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Trace = Callable[..., Said]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every command runs in a directory of its own, without this machine's calibration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATREX_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ATREX_DEBUG", raising=False)
    return tmp_path


@pytest.fixture
def atrex(capsys: pytest.CaptureFixture[str]) -> Trace:
    def run(*arguments: object) -> Said:
        code = main([str(argument) for argument in arguments])
        return Said(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="module")
def condensed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The serving traces among the recorded ones, condensed once."""
    path = tmp_path_factory.mktemp("condensed") / "fleet.gz"
    assert main(["trace", "ingest", *map(str, serving()), "-o", str(path), "--jobs", "1"]) == 0
    return path


def ours(*hours: str) -> list[str]:
    """The options of these applications."""
    return [part for each in hours for part in ("--card-hours", each)]


def serving() -> list[Path]:
    return [path for path in TRACES if path.name.startswith(("llama", "moe"))]


def fails(said: Said, code: int, *parts: str) -> None:
    """One line on standard error that holds these parts, and this exit code."""
    assert said.code == code, said.err
    assert said.err.startswith("atrex: ")
    assert said.err.count("\n") == 1, said.err
    assert "Traceback" not in said.err
    for part in parts:
        assert part in said.err


class TestIngest:
    def test_a_summary_and_a_file(self, atrex: Trace, directory: Path) -> None:
        files = [RECORDED / "llama-prefill.json.gz", RECORDED / "moe-decode.json.gz"]
        said = atrex("trace", "ingest", *files, "-o", "small.gz", "--jobs", 1)
        assert (said.code, said.err) == (0, "")
        assert "llama-prefill.json.gz" in said.out
        assert {one.file for one in load_profiles(directory / "small.gz")} == {path.name for path in files}

    def test_json(self, atrex: Trace) -> None:
        data = atrex("trace", "ingest", RECORDED / "llama-prefill.json.gz", "--json").json
        assert data["failures"] == []
        assert data["profiles"][0]["hardware"] == "H200"
        assert data["profiles"][0]["busy_us"] > 0

    def test_bad_files_lose_nothing_else(self, atrex: Trace, directory: Path) -> None:
        whole = (RECORDED / "llama-decode.json.gz").read_bytes()
        (directory / "cut.json.gz").write_bytes(whole[: len(whole) // 2])
        (directory / "folder.json").mkdir()
        files = [RECORDED / "llama-prefill.json.gz", "cut.json.gz", "folder.json", "none.json"]
        said = atrex("trace", "ingest", *files, "--jobs", 1, "--json")
        assert said.code == 0
        assert [one["file"] for one in said.json["profiles"]] == ["llama-prefill.json.gz"]
        assert len(said.json["failures"]) == said.err.count("\n") == 3
        for name in ("cut.json.gz", "folder.json", "none.json"):
            assert name in said.err

    def test_strict(self, atrex: Trace) -> None:
        said = atrex(
            "trace", "ingest", RECORDED / "llama-prefill.json.gz", "none.json", "--strict", "--jobs", 1
        )
        fails(said, 2, "none.json")

    def test_nothing_readable(self, atrex: Trace, directory: Path) -> None:
        fails(atrex("trace", "ingest", "none.json"), 2, "none.json")
        (directory / "empty.json").write_text("")
        said = atrex("trace", "ingest", "none.json", "empty.json", "--jobs", 1)
        assert said.code == 2
        assert said.err.endswith("none of the 2 files could be read\n")

    def test_a_broken_condensed_file(self, atrex: Trace, directory: Path) -> None:
        (directory / "bad.gz").write_bytes(gzip.compress(b'{"file":"x"}\n'))
        fails(atrex("trace", "ingest", "bad.gz"), 2, "bad.gz: no condensed profile")

    def test_an_absent_extra(self, condensed: Path) -> None:
        """Raw traces need it, condensed profiles do not."""
        assert without_pandas("trace", "show", condensed).code == 0
        fails(without_pandas("trace", "ingest", TRACES[0]), 3, "pandas", "pip install 'atrex[traces]'")


def without_pandas(*arguments: object) -> Said:
    """The command in a process that has no pandas."""
    program = (
        "import sys; sys.modules['pandas'] = None; from atrex.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return Said(done.returncode, done.stdout, done.stderr)


class TestShow:
    def test_condensed_profiles_say_what_raw_traces_say(self, atrex: Trace) -> None:
        files = [RECORDED / f"{name}.json.gz" for name in ("llama-decode", "moe-decode-graph", "two-streams")]
        assert atrex("trace", "ingest", *files, "-o", "some.gz", "--jobs", 1).code == 0
        raw = atrex("trace", "show", *files, "--jobs", 1, "--json").json
        assert atrex("trace", "show", "some.gz", "--json").json == raw

    def test_all_time_is_accounted_for(self, atrex: Trace, condensed: Path) -> None:
        data = atrex("trace", "show", condensed, "--json").json
        assert fsum(row["share"] for row in data["targets"]) == pytest.approx(1, abs=1e-9)
        assert fsum(row["device_us"] for row in data["targets"]) == pytest.approx(data["device_us"])
        unknown = fsum(row["share"] for row in data["targets"] if row["target"] == "unplaced")
        assert fsum(row["share"] for row in data["unplaced"]) == pytest.approx(unknown, abs=1e-9)

    def test_time_is_the_profilers_own(self, atrex: Trace) -> None:
        totals = json.loads((RECORDED / "llama-prefill.totals.json").read_text())
        data = atrex("trace", "show", RECORDED / "llama-prefill.json.gz", "--json").json
        assert data["device_us"] == pytest.approx(own_total(totals), rel=1e-3)

    def test_unplaced_comes_with_its_rule(self, atrex: Trace, directory: Path) -> None:
        odd = Part("?", 5.0, kernel="frobnicate_the_widgets<float>(int)")
        save_profiles([made("a", [odd, norm(2, 8)])[0]], directory / "odd.gz")
        (row,) = [
            each
            for each in atrex("trace", "show", "odd.gz", "--unplaced", "--json").json["unplaced"]
            if each["kernel"] == odd.kernel
        ]
        (directory / "mine.yaml").write_text(f"rules:\n{row['rule']}")
        again = atrex("trace", "show", "odd.gz", "--rules", "mine.yaml", "--json")
        assert again.code == 0, again.err  # the suggested rule is one, and places it
        assert odd.kernel not in {each["kernel"] for each in again.json["unplaced"]}
        assert "frobnicate" in atrex("trace", "show", "odd.gz", "--unplaced").out

    def test_bad_rules(self, atrex: Trace, condensed: Path, directory: Path) -> None:
        (directory / "rules.yaml").write_text("rules: 5\n")
        fails(atrex("trace", "show", condensed, "--rules", "rules.yaml"), 2, "rules.yaml")
        fails(atrex("trace", "show", condensed, "--rules", "none.yaml"), 2, "none.yaml")


def own_total(totals: Any) -> float:
    """Device time in the profiler's key_averages, microseconds; ranges are listed on both sides."""
    ranges = {row["name"] for row in totals["rows"] if row["device"] == "CPU"}
    rows = [row for row in totals["rows"] if row["device"] == "CUDA" and row["name"] not in ranges]
    return fsum(row["self_device_us"] for row in rows)


class TestWeights:
    def test_the_workload_is_one_that_others_take(self, atrex: Trace, condensed: Path) -> None:
        said = atrex("trace", "weights", condensed, *ours(LLAMA, MOE), "-o", "mine.yaml")
        assert said.code == 0, said.err
        workload = load_workload("mine.yaml")
        assert workload.name == "mine"
        listed = {row["op"]: row for row in atrex("list", "--workload", "mine.yaml", "--json").json}
        bounds = atrex("roofline", "--workload", "mine.yaml", "--gpu", "H200", "--json").json
        cases = [case for operator in workload.operators for case in workload.cases(operator)]
        assert len(bounds) == len(cases) > 0
        for operator, entry in workload.operators.items():
            assert listed[operator]["weight"] == entry.weight
        assert all(case.production_us["H200"] > 0 for case in cases)

    def test_weights_are_those_of_the_table(self, atrex: Trace, condensed: Path) -> None:
        said = atrex(
            "trace",
            "weights",
            condensed,
            "--card-hours",
            LLAMA,
            "--card-hours",
            MOE,
            "-o",
            "mine.yaml",
            "--json",
        )
        found = said.json["weights"]
        totals = {row["target"]: row["weight"] for row in found["totals"]}
        for operator, entry in load_workload("mine.yaml").operators.items():
            assert entry.weight == totals[operator]
        assert fsum(row["weight"] for row in found["rows"]) == pytest.approx(1, abs=1e-12)
        for one in said.json["representatives"]:
            assert one["kept"] >= 0.95
            assert fsum(each["scaled"] for each in one["representatives"]) == pytest.approx(one["weight"])

    def test_files_of_applications(self, atrex: Trace, condensed: Path, directory: Path) -> None:
        (directory / "a.yaml").write_text(
            "applications:\n  - {name: llama, card_hours: 300}\n  - {name: moe, card_hours: 100}\n"
        )
        (directory / "a.csv").write_text("name,card_hours,files\nllama,300,llama-*\nmoe,100,moe-*\n")
        flags = atrex("trace", "weights", condensed, *ours(LLAMA, MOE), "--json").json
        for name in ("a.yaml", "a.csv"):
            assert atrex("trace", "weights", condensed, "--applications", name, "--json").json == flags

    def test_compare(self, atrex: Trace, condensed: Path) -> None:
        said = atrex("trace", "weights", condensed, "--compare", "atrex-bench", "--json")
        pairs = said.json["compare"]["operators"]
        assert len(pairs) == 30
        assert fsum(sum(pair["second"].values()) for pair in pairs) == pytest.approx(1)
        assert -1 <= said.json["compare"]["rank_correlation"] <= 1
        assert "beside atrex-bench" in atrex("trace", "weights", condensed, "--compare", "atrex-bench").out

    def test_with_itself_everything_is_in_common(self, atrex: Trace, condensed: Path) -> None:
        assert atrex("trace", "weights", condensed, "-o", "mine.yaml").code == 0
        pairs = atrex("trace", "weights", condensed, "--compare", "mine.yaml", "--json").json["compare"][
            "operators"
        ]
        for pair in pairs:
            assert pair["common"] == pair["first_cases"] == pair["second_cases"]

    def test_without_card_hours_it_says_so(self, atrex: Trace, condensed: Path) -> None:
        said = atrex("trace", "weights", condensed, "-o", "mine.yaml")
        assert "every file the same hour" in said.out
        assert "every file counts the same" in load_workload("mine.yaml").provenance

    @pytest.mark.parametrize(
        ("options", "parts"),
        [
            (["--card-hours", "llama"], ["--card-hours 'llama'", "NAME=HOURS"]),
            (["--card-hours", "llama=-1"], ["--card-hours"]),
            (["--card-hours", "llama=1"], ["profiles of no application: moe-"]),
            ([*ours("llama=1"), *ours("moe=1"), *ours("x=1")], ["without a profile: x"]),
            (["--card-hours", "llama=1", "--applications", "a.yaml"], ["give one of them"]),
            (["--applications", "none.csv"], ["none.csv: cannot be read"]),
            (["--keep", "1.5"], ["--keep 1.5"]),
            (["--compare", "atrex-bnech"], ["did you mean atrex-bench?"]),
            (["--gpu", "H2000"], ["did you mean H200?"]),
            (["-o", "none/mine.yaml"], ["none/mine.yaml: cannot be written"]),
            (["--seed", "one"], ["--seed"]),
        ],
    )  # fmt: skip
    def test_bad_options(self, atrex: Trace, condensed: Path, options: list[str], parts: list[str]) -> None:
        fails(atrex("trace", "weights", condensed, *options), 2, *parts)

    def test_no_case_no_workload(self, atrex: Trace) -> None:
        fails(
            atrex("trace", "weights", RECORDED / "own-kernels.json.gz", "-o", "x.yaml"),
            2,
            "no operator has a case",
        )


class TestReport:
    def test_all_three_forms(self, atrex: Trace, condensed: Path, directory: Path) -> None:
        options = [*ours(LLAMA, MOE), "--html", "page.html"]
        said = atrex("trace", "report", condensed, *options)
        assert said.code == 0, said.err
        assert "where optimising pays" in said.out
        data = atrex("trace", "report", condensed, *options, "--json").json
        assert data["weights"]["card_hours"] == 400
        hours = fsum(row["card_hours"] for row in data["operators"])
        assert hours == pytest.approx(400 * data["weights"]["coverage"]["weight"])
        for row in data["operators"]:
            assert 0 <= row["recoverable"] <= row["bounded"] <= row["card_hours"] * (1 + 1e-9)
        page = (directory / "page.html").read_text()
        assert page.startswith("<!doctype html>")
        for row in data["operators"]:
            assert row["operator"] in page

    def test_every_case_of_these_traces_has_a_bound(self, atrex: Trace, condensed: Path) -> None:
        cases = atrex("trace", "report", condensed, "--json").json["cases"]
        assert cases
        assert all(case["bound"] and case["latency_us"] for case in cases)

    def test_an_unwritable_page(self, atrex: Trace, condensed: Path) -> None:
        fails(
            atrex("trace", "report", condensed, "--html", "none/page.html"),
            2,
            "none/page.html: cannot be written",
        )

    def test_the_order_of_files_does_not_matter(self, atrex: Trace, directory: Path) -> None:
        save_profiles([made("a-0", [norm(10, 8), norm(3, 999, "prefill")])[0]], directory / "first.gz")
        save_profiles([made("a-1", [norm(20, 8)])[0]], directory / "second.gz")
        forth = atrex("trace", "report", "first.gz", "second.gz", "--json").json
        assert atrex("trace", "report", "second.gz", "first.gz", "first.gz", "--json").json == forth


class TestScrub:
    def test_the_workload_stays(self, atrex: Trace, directory: Path) -> None:
        source = RECORDED / "llama-decode-stacks.json.gz"
        said = atrex("trace", "scrub", source, "clean.json.gz")
        assert said.code == 0, said.err
        first = atrex("trace", "show", source, "--json").json
        second = atrex("trace", "show", "clean.json.gz", "--json").json
        assert [(row["target"], row["phase"], row["busy_us"]) for row in second["targets"]] == [
            (row["target"], row["phase"], row["busy_us"]) for row in first["targets"]
        ]

    def test_an_absent_file(self, atrex: Trace) -> None:
        fails(atrex("trace", "scrub", "none.json", "clean.json"), 2, "none.json")
