"""The ablation's arithmetic on numbers worked out by hand, and the whole of it on two tiny landscapes; which
cases a landscape is recorded on, and a real recording."""

from __future__ import annotations

import importlib
import math
import statistics
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.buckets import Grid
from agent.recorded import Cell, Landscape, Pace, Point, load_landscape, save_landscape
from atrex.commands.common import operator_cases
from atrex.errors import UsageError
from atrex.problem import load_problem
from atrex.records import Bound, Case, Provenance, Status

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
ablation: Any = importlib.import_module("ablation")
collector: Any = importlib.import_module("landscape")

SOURCE = "# atrex: dispatch\nDISPATCH = [({}, {'fast': 0})]\n# atrex: end\n\n\nclass Model: ...\n"


def tiny(operator: str, times: tuple[float, ...]) -> Landscape:
    """One case, speed of light 2 us, and a time without noise for each value of the one tunable.

    A worker starts in 1 s and makes its first call in 1 s; a screening takes 10 s, a comparison 1 s.
    """
    case = Case(operator=operator, id="c", input={"token_count": 8}, phase="decode", weight=1.0)
    points = tuple(
        Point(config={"fast": v}, load_seconds=1.0, cells={"c": Cell(seconds=1.0, rounds_us=(t,) * 6)})
        for v, t in enumerate(times)
    )
    return Landscape(
        operator=operator,
        dsl="triton",
        kernel="tiny",
        source=SOURCE,
        tunables={"fast": tuple(range(len(times)))},
        buckets={"token_count": (64,)},
        cases=(case,),
        bounds={"c": Bound(sol_us=2.0, attainable_us=None, limiter="memory")},
        method="graph",
        paces={"c": Pace(seconds=1.0, pairs=6)},
        screen_seconds=10.0,
        points=points,
        provenance=Provenance(hardware="Test", device="cpu", harness="h", torch="t", python="p"),
        date="2026-01-01T00:00:00Z",
        command="test",
    )


def curve(S: float, speedup: float, steps: int = 1) -> Any:
    return ablation.Curve((S,) * len(ablation.FRACTIONS), speedup, steps)


# -- one run -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arm", "done", "steps"), [(ablation.OFF, 34.5, 3), (ablation.RANDOM, 42.5, 2)])
def test_a_run_is_what_it_is_by_hand(arm: Any, done: float, steps: int) -> None:
    """Start compiled and measured at 2.5 s, accepted before; the move compiled and compared by 5.5. The tuner
    compares it again by 6.5 and has it fully judged, what is compiled left out, by 6.5 + 3 * 10 - 2 = 34.5:
    then it is the best. Random search screens it first, which is another 10 - 2. What it does in one step is
    two of the tuner's: a move that is timed, and the best of those before the gates."""
    world = tiny("rms_norm", (8.0, 4.0))
    found = ablation.run(world, arm, 0, ablation.Terms(done + 1.0, 3.0))
    assert found == ablation.Curve((0.25, 0.25, 0.25, 0.25, 0.5), 2.0, steps)
    late = ablation.run(world, arm, 0, ablation.Terms(done - 1.0, 3.0))
    assert late == ablation.Curve((0.25,) * 5, 1.0, steps), "adopted after the end does not count"
    assert ablation.run(world, arm, 0, ablation.Terms(2 * done + 1.0, 3.0)).S == (0.25, 0.25, 0.25, 0.5, 0.5)


def test_nothing_better_leaves_the_start() -> None:
    world = tiny("rms_norm", (4.0, 8.0, 5.0))
    for arm in (ablation.ON, ablation.OFF, ablation.RANDOM):
        found = ablation.run(world, arm, 1, ablation.Terms(300.0))
        assert found.S == (0.5,) * 5
        assert found.speedup == 1.0


# -- statistics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("df", "expected"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (9, 2.2622), (200, 1.9719)]
)
def test_students_quantiles(df: int, expected: float) -> None:
    assert ablation.t_quantile(df) == pytest.approx(expected, abs=1e-4)


def test_a_mean_and_its_interval() -> None:
    found = ablation.mean([1.0, 2.0, 3.0])
    assert found.value == 2.0
    assert found.half == pytest.approx(4.3027 / math.sqrt(3), abs=1e-4)
    assert found.text() == "2 ± 2.5"
    assert found.verdict == "tie"
    assert ablation.mean([1.0, 1.1, 1.2]).verdict == "win"
    assert ablation.mean([-1.0, -1.1, -1.2]).verdict == "loss"
    assert ablation.mean([0.0, 0.0]).verdict == "tie"
    assert ablation.mean([2.0]).text("+") == "+2", "a single value has no interval"


def test_halves_are_seeded_disjoint_and_complete() -> None:
    names = [f"op{number}" for number in range(7)]
    tune, report = ablation.halves(names, 3)
    assert (len(tune), len(report)) == (3, 4)
    assert sorted(tune + report) == names
    assert ablation.halves(names[::-1], 3) == (tune, report)
    assert any(ablation.halves(names, seed) != (tune, report) for seed in range(3))
    with pytest.raises(UsageError, match="two landscapes"):
        ablation.halves(names[:1], 0)


def test_settings_hold_the_default_once_and_first() -> None:
    found = ablation.settings()
    assert found[0] == ablation.ON
    policies = [arm.dropout for arm in found]
    assert len({policy.model_dump_json() for policy in policies}) == len(policies) == 27
    assert len({arm.name for arm in found}) == 27


# -- tables --------------------------------------------------------------------------------------------------


def test_the_comparison_is_paired_and_counted_as_by_hand() -> None:
    on, off = ablation.ON, ablation.OFF
    runs = {
        ("a", on.name): [curve(0.5, 2.0, 10), curve(0.7, 2.0, 20)],  # better by 0.2 with either seed
        ("a", off.name): [curve(0.3, 1.5, 4), curve(0.5, 1.5, 6)],
        ("b", on.name): [curve(0.4, 0.9, 8), curve(0.6, 1.6, 8)],  # once better by 0.1, once worse
        ("b", off.name): [curve(0.3, 1.0, 8), curve(0.7, 1.0, 8)],
    }
    first, second, _, tally = ablation.versus(runs, ["a", "b"], on, off)[2:]
    cells = [cell.strip() for cell in first.split("|")[1:-1]]
    assert cells[0] == "a"
    assert cells[1].startswith("0.6 ± 1.3")  # 12.706 * 0.1414 / sqrt(2)
    assert cells[3].startswith("+0.2 ± ")
    assert cells[4:] == ["win", "2.000, 1.500", "15, 5"]
    cells = [cell.strip() for cell in second.split("|")[1:-1]]
    assert cells[4:] == ["tie", "1.200, 1.000", "8, 8"]
    assert "1 wins, 1 ties, 0 losses" in tally
    assert "mean difference +0.1 ± 1.3" in tally
    said = ablation.never_worse(runs, ["a", "b"], on)
    assert said == "dropout on: 1 of 4 runs end below the start; the least speed-up is 0.9000."


def test_shares_over_time_are_means_over_seeds_and_landscapes() -> None:
    on, off = ablation.ON, ablation.OFF
    runs = {
        ("a", on.name): [ablation.Curve((0.1, 0.1, 0.2, 0.2, 0.4), 1.0, 1), curve(0.4, 1.0)],
        ("a", off.name): [curve(0.2, 1.0), curve(0.2, 1.0)],
        ("b", on.name): [curve(0.5, 1.0), curve(0.5, 1.0)],
        ("b", off.name): [curve(0.5, 1.0), curve(0.5, 1.0)],
    }
    tops = {"a": 0.4, "b": 1.0}
    lines = ablation.over_time(runs, tops, [on, off], [(on, off)], ablation.Terms(160.0))[2:]
    assert [line.split("|")[1].strip() for line in lines] == ["10", "20", "40", "80", "160"]
    assert [line.split("|")[2].strip() for line in lines] == [
        "0.5625",
        "0.5625",
        "0.6250",
        "0.6250",
        "0.7500",
    ]
    assert {line.split("|")[3].strip() for line in lines} == {"0.5000"}
    assert lines[-1].split("|")[4].strip().startswith("+0.25 ± 3.2")  # 12.706 * 0.3536 / sqrt(2)
    value = statistics.fmean([(0.25 + 0.25 + 0.5 + 0.5 + 1 + 5) / 10, 0.5])
    assert ablation.anytime(runs, on, tops) == pytest.approx(value)


# -- the command ---------------------------------------------------------------------------------------------


def ask(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["ablation.py", *map(str, arguments)])
    code: int = ablation.main()
    return code


def test_the_whole_of_it_on_two_tiny_landscapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / "one.json.gz", tmp_path / "two.json.gz"]
    save_landscape(tiny("rms_norm", (8.0, 4.0)), paths[0])
    save_landscape(tiny("l2_norm", (4.0, 8.0)), paths[1])
    output = tmp_path / "page.md"
    common = ("--seeds", 2, "--tuning-seeds", 1, "--seconds", 64, "--full-factor", 3, "--output", output)
    assert ask(monkeypatch, *paths, *common) == 0
    text = output.read_text()
    assert "| rms_norm (cpu) | tiny | Test, 2026-01-01 | 2 | 1 | 0% | 0.25 | 0.5 |" in text
    assert "| l2_norm (cpu) | tiny | Test, 2026-01-01 | 2 | 1 | 0% | 0.5 | 0.5 |" in text
    assert "| rms_norm (cpu) | 0.5 ± 0 | 0.5 ± 0 | +0 ± 0 | tie | 2.000, 2.000 |" in text
    assert "dropout on against random: 0 wins, 2 ties, 0 losses" in text
    assert "dropout on against random, judged late: 0 wins, 2 ties, 0 losses" in text
    assert "dropout on: 0 of 4 runs end below the start; the least speed-up is 1.0000." in text
    assert "| 64 | 1.0000 | 1.0000 | 1.0000 | 1.0000 | +0 ± 0 | +0 ± 0 | +0 ± 0 |" in text
    assert "| 32 | 0.7500 | 0.7500 | 0.7500 | 0.7500 | +0 ± 0 | +0 ± 0 | +0 ± 0 |" in text
    assert "27 settings" in text
    ask(monkeypatch, *paths, *common, "--jobs", 2)
    parallel = output.read_text().splitlines()
    assert parallel[3:] == text.splitlines()[3:], "however many processes share the work"


def test_what_cannot_be_used_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "one.json.gz"
    save_landscape(tiny("rms_norm", (8.0, 4.0)), path)
    with pytest.raises(UsageError, match="two landscapes or more"):
        ask(monkeypatch, path)
    with pytest.raises(UsageError, match="another landscape of rms_norm"):
        ask(monkeypatch, path, path)
    with pytest.raises(UsageError, match="no such file"):
        ask(monkeypatch, path, tmp_path / "none.json.gz")


# -- recording -----------------------------------------------------------------------------------------------


def tokens(case: Case) -> float:
    return float(case.input["token_count"])


def test_cases_are_spread_over_buckets_and_sizes_without_the_slow_ones() -> None:
    problem, cases = load_problem("rms_norm"), operator_cases("atrex-bench", "rms_norm")
    grid = Grid(problem.spec.buckets)
    chosen = collector.spread_cases(problem, cases, tokens, 5, 1e9)
    assert len(chosen) == len({grid.bucket(case) for case in chosen}) == 5, (
        "the heaviest five of more buckets"
    )
    few = [case for case in cases if case.input["hidden_size"] <= 256]
    chosen = collector.spread_cases(problem, few, tokens, 6, 8192.0)
    groups = grid.group(chosen)
    assert [len(group) for group in groups.values()] == [2, 2, 2]
    assert max(map(tokens, chosen)) <= 8192
    assert len({case.id for case in chosen}) == 6
    with pytest.raises(UsageError, match="no case has a bound"):
        collector.spread_cases(problem, few, tokens, 6, 0.5)


def test_every_kernel_with_tunables_can_be_recorded() -> None:
    found = collector.kernels("cuda")
    assert len(found) >= 10
    for operator, item in found.items():
        assert item.tunables
        problem, cases = load_problem(operator), operator_cases("atrex-bench", operator)
        assert collector.spread_cases(problem, cases, lambda case: 1.0, 5, 2.0)
    assert "rms_norm" in collector.kernels("cpu")


@pytest.mark.slow
def test_a_real_recording_can_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [
        "rms_norm",
        "--device",
        "cpu",
        "--configs",
        "4",
        "--cases",
        "2",
        "--screen",
        "5",
        "--seconds",
        "240",
    ]
    monkeypatch.setattr(sys, "argv", ["landscape.py", *asked, "--output", str(tmp_path)])
    assert collector.main() == 0
    (path,) = tmp_path.iterdir()
    world = load_landscape(path)
    assert len(world.points) == 4
    assert len(world.cases) == 2
    cells = [cell for each in world.points for cell in each.cells.values()]
    assert all(cell.status is Status.PASS and len(cell.rounds_us) == 5 for cell in cells)
    assert all(each.load_seconds > 0.1 for each in world.points), "each is compiled, the start too"
    assert ablation.run(world, ablation.ON, 0, ablation.Terms(300.0)).steps >= 2
