"""`atrex compare-runs` on run directories with real reports, whose numbers can be worked out on paper."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from atrex.cli import main
from atrex.records import Bound, Case, Judgement, Latency, Ratio, Result, Scalar, Status, Verdict
from atrex.report import RunReport, render
from atrex.report.compare import Asked, compare
from atrex.report.workload import Entrant, WorkloadReport
from atrex.runs import Run, RunMeta, create_run
from atrex.score import CaseScore, score_cases
from atrex.spending import Spending

Said = tuple[int, str, str]
Atrex = Callable[..., Said]
OPS = {"rms_norm": 0.25, "fused_moe": 0.75}


@pytest.fixture
def atrex(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Atrex:
    def run(*arguments: str) -> Said:
        code = main(["compare-runs", *arguments, "--runs", str(tmp_path)])
        return code, *capsys.readouterr()

    return run


def scored(values: dict[str, float], gain: float | None = 2.0) -> tuple[CaseScore, ...]:
    """One case an operator, of this S."""
    cases = [
        Case(operator=op, id=f"{op}-000", input={"n": 4}, phase="decode", weight=OPS.get(op, 0.5))
        for op in values
    ]
    results = [
        Result(
            candidate="k", operator=case.operator, case=case.id, policy="p", accepted=True,
            latency=Latency(median_us=4 / s, p10_us=4 / s, p90_us=4 / s, n=9, method="graph"),
            bound=Bound(sol_us=4.0, attainable_us=None, limiter="memory"),
            vs_eager=Ratio(median=gain, low=gain * 0.9, high=gain * 1.1, n=6) if gain else None,
        )
        for case, s in zip(cases, values.values(), strict=True)
    ]  # fmt: skip
    return score_cases(cases, results)


def benched(agent: str, norm: float, moe: float, **changes: Any) -> WorkloadReport:
    report = WorkloadReport(
        agent=agent, device="cpu", workload="atrex-bench", scale="small", run="r", seconds=60.0,
        cases=scored({"rms_norm": norm, "fused_moe": moe}),
    )  # fmt: skip
    return report.model_copy(update=changes)


def optimised(agent: str, s: float, gain: float, op: str = "rms_norm") -> RunReport:
    verdict = Verdict(gate="interface", status=Status.PASS, tolerance_free=True)
    judgement = Judgement(
        candidate="k", operator=op, device="cpu", level="full", seed=1, required=("interface",),
        verdicts=(verdict,),
    )  # fmt: skip
    return RunReport(
        op=op, device="cpu", dsl="cpp", run="r", kernel="best.py", candidates_tried=3, candidates_accepted=1,
        seconds=60.0, judgement=judgement, cases=scored({op: s}, gain), agent=agent,
    )  # fmt: skip


def kept(root: Path, report: RunReport | WorkloadReport | None, seed: int = 1, **agent: Scalar) -> str:
    """A run directory with this report; its name."""
    meta = RunMeta(
        created="2026-01-01T12:00:00+00:00", command=("atrex",), operator="bench-x", device="cpu",
        seed=seed, budget={"workload": "atrex-bench", "per_op": 300.0}, agent=agent,
    )  # fmt: skip
    run: Run = create_run(root, meta)
    if report:
        render.save(run, report)
    return run.name


@pytest.fixture
def three_against_two(tmp_path: Path) -> list[str]:
    """S of search: 0.10, 0.12, 0.14 (rms_norm 0.20 always); of claude: 0.30 and 0.34 (0.60 always)."""
    spent = Spending(calls=2, input_tokens=800, output_tokens=200, dollars=3.0)
    search = [benched("search", 0.20, (total - 0.05) / 0.75) for total in (0.10, 0.12, 0.14)]
    claude = [benched("claude", 0.60, (total - 0.15) / 0.75, spent=spent) for total in (0.30, 0.34)]
    return [kept(tmp_path, report, seed) for seed, report in enumerate(search + claude)]


def test_means_intervals_and_differences(atrex: Atrex, three_against_two: list[str]) -> None:
    code, out, err = atrex(*three_against_two, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    search, claude = found["groups"]
    assert [(side["agent"], side["seeds"]) for side in (search, claude)] == [
        ("search", [0, 1, 2]),
        ("claude", [3, 4]),
    ]
    reach = 4.30265 * 0.02 / math.sqrt(3)
    near = pytest.approx
    assert search["figures"]["S"] == {"value": near(0.12), "low": near(0.12 - reach, rel=1e-4),
                                      "high": near(0.12 + reach, rel=1e-4), "n": 3}  # fmt: skip
    assert search["figures"]["A"] is None, "not calibrated"
    assert search["figures"]["S_prefill"] is None
    assert search["figures"]["fast_1_weighted"]["value"] == 1.0, "2.0 is above 1"
    assert search["figures"]["fast_2"]["value"] == 0.0, "and not above 2"
    assert search["figures"]["tokens"] is None
    assert claude["figures"]["tokens"]["value"] == 1000
    per_point = (1000 / 30 + 1000 / 34) / 2
    assert claude["figures"]["tokens_per_point"]["value"] == near(per_point)
    assert claude["figures"]["dollars_per_point"]["value"] == near((3 / 30 + 3 / 34) / 2)

    (change,) = found["total"]["differences"]
    # Welch: s²/n is 4/30000 and 12/30000, 32/19 degrees of freedom, between those of 1 and of 2
    error = math.sqrt(16 / 30000)
    assert change["value"] == near(0.20)
    assert 4.303 * error < change["high"] - 0.20 < 12.706 * error


def test_operators_that_matter_most_come_first(atrex: Atrex, three_against_two: list[str]) -> None:
    lines = json.loads(atrex(*three_against_two, "--json")[1])["operators"]
    # rms_norm: 0.25 × 0.40 = 0.100; fused_moe: 0.75 × (17/75 - 7/75) = 0.100 and a little less
    assert {line["name"]: line["differences"][0]["value"] for line in lines} == {
        "rms_norm": pytest.approx(0.40),
        "fused_moe": pytest.approx(0.17 / 0.75 - 0.07 / 0.75),
    }
    norm = next(line for line in lines if line["name"] == "rms_norm")
    assert (norm["differences"][0]["low"], norm["weight"]) == (pytest.approx(0.40), 0.25)


def order(*runs: tuple[str, float, float]) -> list[str]:
    """Operators of these runs as compared, from (agent, S of rms_norm, S of fused_moe)."""
    pairs = [(Asked(str(n), n, {}), benched(*run)) for n, run in enumerate(runs)]
    return [line.name for line in compare(pairs).operators]


def test_the_order_is_by_weight_times_the_largest_difference() -> None:
    assert order(("a", 0.1, 0.1), ("b", 0.3, 0.2)) == ["fused_moe", "rms_norm"], "0.75 × 0.1 > 0.25 × 0.2"
    assert order(("a", 0.1, 0.1), ("b", 0.5, 0.2)) == ["rms_norm", "fused_moe"], "0.75 × 0.1 < 0.25 × 0.4"
    assert order(("a", 0.1, 0.1), ("b", 0.3, 0.2), ("c", 0.9, 0.1)) == ["rms_norm", "fused_moe"]
    assert order(("a", 0.9, 0.1)) == ["fused_moe", "rms_norm"], "one group: by weight"


def test_every_form_says_the_same(atrex: Atrex, three_against_two: list[str]) -> None:
    texts = [atrex(*three_against_two)[1], atrex(*three_against_two, "--markdown")[1].replace("\\", "")]
    for text in texts:
        for part in ("0.1200 [0.0703, 0.1697]", "not calibrated", "100.0% [100.0%, 100.0%]", "1,000",
                     "+0.4000 [+0.4000, +0.4000]", "Welch"):  # fmt: skip
            assert part in text, part
    assert "| A | not calibrated | not calibrated |" in texts[1]
    assert max(map(len, texts[0].splitlines())) <= 110


def test_one_run_has_no_interval_and_a_repeated_seed_is_named(atrex: Atrex, tmp_path: Path) -> None:
    names = [
        kept(tmp_path, benched("eager", 0.1, 0.1, spent=None), 1),
        *(
            kept(tmp_path, benched("claude", 0.2, moe), 7, knowledge=on)
            for moe, on in ((0.2, "y"), (0.3, "n"))
        ),
    ]
    code, out, _ = atrex(*names)
    assert code == 0
    assert "eager: one run, so no interval over seeds" in out
    assert "claude: 2 runs have seed 7" in out
    assert "claude: its runs differ in knowledge: y, n" in out
    (change,) = json.loads(atrex(*names, "--json")[1])["total"]["differences"]
    assert (change["low"], change["high"]) == (None, None)


def test_figures_that_are_unknown_are_called_that(atrex: Atrex, tmp_path: Path) -> None:
    alone = scored({"rms_norm": 0.2, "fused_moe": 0.2}, gain=None)
    asked = Spending(calls=1, input_tokens=10, dollars=None)
    names = [
        kept(tmp_path, benched("a", 0.2, 0.2, cases=alone, spent=asked), 1),
        kept(tmp_path, benched("b", 0.2, 0.2), 2),
    ]
    out = atrex(*names)[1]
    assert "not measured beside eager" in out
    assert "price unknown" in out
    cells = next(line.split() for line in out.splitlines() if line.startswith("dollars  "))
    assert cells == ["dollars", "price", "unknown", "–"], "the second asked no model: no price is missing"


def test_one_unknown_price_makes_the_mean_unknown(atrex: Atrex, tmp_path: Path) -> None:
    prices = (None, 2.0)
    spent = [Spending(calls=1, input_tokens=500, output_tokens=100, dollars=price) for price in prices]
    bench = [kept(tmp_path, benched("a", 0.2, 0.2, spent=one), n) for n, one in enumerate(spent)]
    figures = json.loads(atrex(*bench, "--json")[1])["groups"][0]["figures"]
    assert (figures["dollars"], figures["dollars_per_point"]) == (None, None)
    assert figures["tokens"]["value"] == 600
    search = [optimised("a", 0.2, 2.0).model_copy(update={"spent": one}) for one in spent]
    names = [kept(tmp_path, report, n) for n, report in enumerate(search)]
    figures = json.loads(atrex(*names, "--json")[1])["groups"][0]["figures"]
    assert figures["dollars"] is None
    assert figures["tokens_per_point"]["value"] == pytest.approx(600 / 20)


def test_differences_of_method_are_noted(atrex: Atrex, tmp_path: Path) -> None:
    few = benched("b", 0.2, 0.2, device="cuda", cases_per_operator=2, cases=scored({"rms_norm": 0.2}))
    names = [kept(tmp_path, benched("a", 0.2, 0.2), 1), kept(tmp_path, few, 2)]
    code, out, _ = atrex(*names)
    assert code == 0
    said = " ".join(out.split())
    for part in ("device cpu in", "cases an operator all in", "cases 2 ("):
        assert f"not measured alike: {part}" in said, part
    lines = json.loads(atrex(*names, "--json")[1])["operators"]
    assert next(line for line in lines if line["name"] == "fused_moe")["differences"] == [None]
    backwards = json.loads(atrex(*reversed(names), "--json")[1])["operators"]
    assert next(line for line in backwards if line["name"] == "fused_moe")["S"][0] is None


def test_optimisations_of_one_operator(atrex: Atrex, tmp_path: Path) -> None:
    pairs = [("search", 0.4, 2.0), ("search", 0.6, 8.0), ("gpt", 0.5, 3.0)]
    names = [kept(tmp_path, optimised(*one), seed) for seed, one in enumerate(pairs)]
    found = json.loads(atrex(*names, "--json")[1])
    search, gpt = (side["figures"] for side in found["groups"])
    assert (found["of"], search["speedup_vs_eager"]["value"]) == ("rms_norm", pytest.approx(4.0))
    assert (search["speedup_vs_compile"], gpt["accepted"]["value"]) == (None, 1.0)
    assert found["total"]["differences"][0]["value"] == pytest.approx(0.0)
    code, out, _ = atrex(*names, "--markdown")
    assert code == 0
    assert "| rms_norm | – | 0.5000 | 0.5000 | +0.0000 |" in out


def test_a_run_without_a_kernel_has_no_speed_up_and_an_S_of_0(atrex: Atrex, tmp_path: Path) -> None:
    nothing = RunReport(
        op="rms_norm", device="cpu", dsl="cpp", run="r", kernel=None, candidates_tried=3,
        candidates_accepted=0, seconds=60.0, agent="gpt",
        cases=tuple(CaseScore(case=one.case) for one in scored({"rms_norm": 0.4})),
    )  # fmt: skip
    names = [kept(tmp_path, one, n) for n, one in enumerate((optimised("gpt", 0.4, 3.0), nothing))]
    figures = json.loads(atrex(*names, "--json")[1])["groups"][0]["figures"]
    assert (figures["S"]["value"], figures["accepted"]["value"]) == (pytest.approx(0.2), 0.5)
    assert figures["speedup_vs_eager"] == {"value": pytest.approx(3.0), "low": None, "high": None, "n": 1}
    assert "3.00 (1 of 2 runs)" in atrex(*names)[1]


def test_what_cannot_be_compared_is_one_line(atrex: Atrex, tmp_path: Path) -> None:
    bench = kept(tmp_path, benched("a", 0.2, 0.2))
    other = kept(tmp_path, benched("a", 0.2, 0.2, workload="mine"))
    full = kept(tmp_path, benched("a", 0.2, 0.2, scale="full"))
    norm = kept(tmp_path, optimised("a", 0.2, 2.0))
    moe = kept(tmp_path, optimised("a", 0.2, 2.0, "fused_moe"))
    silent = kept(tmp_path, None)
    damaged = kept(tmp_path, benched("a", 0.2, 0.2))
    (tmp_path / damaged / "report.json").write_text('{"kind": "workload", "agent": 3}')
    cut = kept(tmp_path, benched("a", 0.2, 0.2))
    text = (tmp_path / cut / "report.json").read_text()
    (tmp_path / cut / "report.json").write_text(text[: len(text) // 2])
    wrong: Sequence[tuple[tuple[str, ...], str]] = [
        ((bench, other), "not comparable: workload atrex-bench in"),
        ((bench, full), "not comparable: scale small in"),
        ((norm, moe), "not comparable: operator rms_norm in"),
        ((bench, norm), "compare runs of one kind"),
        ((bench, silent), "the run has no report yet"),
        ((bench, damaged), f"{damaged}/report.json: field"),
        ((bench, cut), f"{cut}/report.json"),
        ((bench, bench), "is given twice"),
        ((bench, "nothing-like-it"), "no run 'nothing-like-it'"),
        ((), "Missing argument 'RUN"),
    ]
    for names, part in wrong:
        code, out, err = atrex(*names)
        assert (code, out) == (2, ""), part
        assert part in err
        assert err.startswith("atrex: ")
        assert err.count("\n") == 1, err


def test_hostile_names_stay_text(atrex: Atrex, tmp_path: Path) -> None:
    evil = "<b>x</b> | \x1b[31m [bold]y[/] https://z"
    name = kept(tmp_path, benched("a", 0.2, 0.2), 1)
    worse = benched(evil, 0.2, 0.2, cases=scored({"rms_norm": 0.2, evil: 0.1}))
    code, out, _ = atrex(name, kept(tmp_path, worse, 2))
    assert code == 0
    assert "\x1b" not in out
    assert "[bold]y[/]" in out.replace("\n", " ")
    marked = atrex(name, kept(tmp_path, worse, 3), "--markdown")[1]
    assert "<b>" not in marked
    assert "https://" not in marked


def test_an_operator_that_a_rejected_file_has_is_a_zero(tmp_path: Path, atrex: Atrex) -> None:
    cases = tuple(CaseScore(case=one.case) for one in scored({"rms_norm": 0.2, "fused_moe": 0.2}))
    entrant = Entrant(operator="rms_norm", outcome="rejected", candidate="k", note="full_write FAIL")
    failed = benched("b", 0.2, 0.2, cases=cases, entrants=(entrant,))
    found = json.loads(atrex(kept(tmp_path, benched("a", 0.2, 0.2)), kept(tmp_path, failed), "--json")[1])
    assert found["groups"][1]["figures"]["S"]["value"] == 0.0
    assert found["groups"][1]["figures"]["fast_1"]["value"] == 0.0
    assert {line["S"][1]["value"] for line in found["operators"]} == {0.0}
