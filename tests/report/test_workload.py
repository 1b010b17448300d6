"""A benchmark's report in all its forms: a hand-made one whose scores can be worked out on paper."""

from __future__ import annotations

import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pydantic import ValidationError
from rich.console import Console

from atrex.errors import UsageError
from atrex.records import Bound, Case, Cost, Latency, Phase, Provenance, Ratio, Result
from atrex.report import render
from atrex.report.terminal import WIDTH
from atrex.report.workload import WORKLOAD_HEADLINE, Entrant, WorkloadReport, load_any_report
from atrex.report.workload_text import TOP, facts, warnings
from atrex.score import score_cases
from atrex.spending import Spending

HOSTILE = (
    "<script>alert(1)</script> \x1b[31mred\x1b]8;;http://x\x07 | `tick` [bold]x[/] \u202egnp.exe\n# head"
)


def case(operator: str, number: int, weight: float, phase: Phase = "prefill", us: float = 0) -> Case:
    return Case(
        operator=operator,
        id=f"{operator}-{number:03d}",
        input={"token_count": 4096 * (number + 1), "hidden_size": 2048, "seq_lens": [[4096, 3]]},
        phase=phase,
        weight=weight,
        production_us={"H200": us} if us else {"XPU-A": 3.0},
    )


CASES = (
    case("unified_attention", 0, 0.2, us=40.0),
    case("unified_attention", 1, 0.2),
    case("rms_norm", 0, 0.1, "decode"),
    case("rms_norm", 1, 0.1),
    case("topk_filter", 0, 0.4, "decode"),
)
COSTS = {one.id: Cost(flops={"fp32": 1e6}, read_bytes=9600, write_bytes=9600) for one in CASES}


def result(one: Case, median: float | None, accepted: bool = True, gain: float | None = None) -> Result:
    return Result(
        candidate="k",
        operator=one.operator,
        case=one.id,
        policy="p",
        accepted=accepted,
        latency=Latency(
            median_us=median, p10_us=median, p90_us=median * 1.1, n=20, method="graph", host_us=5.5
        )
        if median
        else None,
        bound=Bound(sol_us=4.0, attainable_us=6.0, limiter="memory"),
        vs_eager=Ratio(median=gain, low=gain * 0.9, high=gain * 1.1, n=6) if gain else None,
    )


@pytest.fixture
def benched() -> WorkloadReport:
    """unified_attention: S 0.2 and 0 (out of memory); rms_norm 0.4 and 0.8; topk_filter rejected."""
    results = [
        result(CASES[0], 20.0, gain=3.0),
        result(CASES[1], None),
        result(CASES[2], 10.0),
        result(CASES[3], 5.0),
        result(CASES[4], None, accepted=False),
    ]
    return WorkloadReport(
        agent="replay:kernels",
        device="cuda",
        workload="atrex-bench",
        run="runs/20260101T120000Z-bench-replay-cuda-1a2b",
        seconds=312.4,
        cases=score_cases(CASES, results, COSTS),
        entrants=(
            Entrant(operator="unified_attention", outcome="accepted", candidate="k"),
            Entrant(operator="rms_norm", outcome="accepted", candidate="k"),
            Entrant(
                operator="topk_filter", outcome="rejected", candidate="k", note="full_write FAIL: " + HOSTILE
            ),
        ),
        reasons={
            "unified_attention-001": "out of memory: " + HOSTILE,
            "topk_filter-000": "full_write FAIL: " + HOSTILE,
        },
        accelerators=("H200",),
        provenance=Provenance(
            hardware="NVIDIA H200", device="cuda", harness="0.1.0", torch="2.11.0", python="3.12.3"
        ),
        command="atrex bench --agent replay:kernels",
        notes=("notes.py is named after no operator: not run " + HOSTILE,),
    )


def printed(report: WorkloadReport) -> str:
    out = io.StringIO()
    Console(file=out, width=WIDTH, color_system=None).print(render.terminal(report))
    return out.getvalue()


def test_scores_are_those_of_the_paper(benched: WorkloadReport) -> None:
    s, a = benched.S, benched.A
    assert s == pytest.approx(0.4 * 0.1 + 0.2 * 0.6 + 0)
    assert a == pytest.approx(0.4 * 0.15 + 0.2 * 0.9)
    assert benched.phases == {
        "prefill": pytest.approx((0.4 * 0.1 + 0.1 * 0.8) / 0.5),
        "decode": pytest.approx(0.1 * 0.4 / 0.5),
    }
    assert (benched.coverage, benched.measured) == (pytest.approx(0.6), pytest.approx(0.4))
    assert benched.harmonic == 0.0
    assert benched.harmonic_measured == pytest.approx(0.4 / (0.2 / 0.2 + 0.1 / 0.4 + 0.1 / 0.8))
    (saving,) = benched.savings
    assert (saving.share, saving.known, saving.cases) == (pytest.approx(0.5), pytest.approx(0.2), 1)


def test_rows_by_weight(benched: WorkloadReport) -> None:
    rows = {row.op: row for row in benched.operators}
    assert list(rows) == ["topk_filter", "unified_attention", "rms_norm"]
    attention = rows["unified_attention"]
    assert (attention.measured, attention.cases, attention.S) == (1, 2, pytest.approx(0.1))
    assert attention.lost == pytest.approx(0.2 * 0.8 + 0.2)
    assert attention.vs_eager is not None
    assert attention.vs_eager.median == pytest.approx(3.0)
    assert rows["rms_norm"].vs_eager is None
    assert rows["topk_filter"].outcome == "rejected"


def test_json_has_the_promised_keys_first_and_loads_again(benched: WorkloadReport, tmp_path: Path) -> None:
    data = benched.model_dump(mode="json")
    assert tuple(data)[: len(WORKLOAD_HEADLINE)] == WORKLOAD_HEADLINE
    path = tmp_path / "report.json"
    path.write_text(benched.model_dump_json(indent=2))
    assert load_any_report(path) == benched
    path.write_text(json.dumps(data | {"S": 0.99, "coverage": 1.0}))
    assert load_any_report(path) == benched, "what is derived is worked out anew"


def test_a_file_that_is_wrong_names_the_field(benched: WorkloadReport, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with pytest.raises(UsageError, match="no report yet"):
        load_any_report(path)
    path.write_text("{")
    with pytest.raises(UsageError, match=r"report\.json"):
        load_any_report(path)
    path.write_text(json.dumps(benched.model_dump(mode="json") | {"scale": "tiny"}))
    with pytest.raises(UsageError, match=r"report\.json: field scale"):
        load_any_report(path)


def test_no_contradiction_can_be_built(benched: WorkloadReport) -> None:
    rejected = benched.entrants[0].model_copy(update={"outcome": "rejected"})
    with pytest.raises(ValidationError, match="is measured, but what ran for it is not accepted"):
        WorkloadReport.model_validate(benched.model_dump() | {"entrants": (rejected.model_dump(),)})
    stranger = Entrant(operator="fft", outcome="absent").model_dump()
    with pytest.raises(ValidationError, match="an entrant for fft"):
        WorkloadReport.model_validate(benched.model_dump() | {"entrants": (stranger,)})


def test_the_terminal_form_fits_and_says_what_counts_zero(benched: WorkloadReport) -> None:
    text = printed(benched)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert "2 of 5 cases have no measurement and count 0" in text
    assert "REJECTED: full_write FAIL" in text
    assert "saves 50.0% on H200" in text
    assert "– unified_attention-001: out of memory" in text
    assert "– topk_filter" not in text, "its line in the table has said so"
    order = [line.split()[0] for line in text.splitlines() if "token_count=" in line]
    assert order == [one.case.id for one in sorted(benched.cases, key=lambda one: -one.lost)]
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_reduced_shapes_are_called_that_in_every_form(benched: WorkloadReport) -> None:
    small = benched.model_copy(update={"scale": "small", "cases_per_operator": 2, "phase": "decode"})
    assert not small.savings
    assert any("at most 2 cases" in line for line in warnings(small))
    assert any("decode cases only" in line for line in warnings(small))
    for text in (printed(small), render.markdown(small), render.html(small)):
        assert "REDUCED SHAPES" in text


def test_a_machine_without_production_latencies_says_whose_are_known(benched: WorkloadReport) -> None:
    elsewhere = benched.model_copy(update={"accelerators": ()})
    assert "known for H200, XPU-A" in dict(facts(elsewhere))["fleet time"]


def test_many_cases_are_cut_to_the_costliest(benched: WorkloadReport) -> None:
    many = tuple(case("rms_norm", n, 0.01 * n) for n in range(50))
    report = benched.model_copy(update={"cases": score_cases(many, []), "entrants": ()})
    rows = [line for line in printed(report).splitlines() if line.startswith("rms_norm-")]
    assert len(rows) == TOP
    assert rows[0].startswith("rms_norm-049")
    assert "not reached" in printed(report)
    assert (
        render.markdown(report).count("\n| rms\\_norm-") + render.markdown(report).count("\n| rms_norm-")
        == 70
    )


class Tags(HTMLParser):
    """Counts the tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)


def test_hostile_text_stays_text(benched: WorkloadReport) -> None:
    page = render.html(benched)
    tags = Tags()
    tags.feed(page)
    assert tags.seen.count("script") == 1
    assert "alert(1)</script>" not in page
    assert "<script>alert" not in render.markdown(benched)


def test_a_report_of_nothing_renders() -> None:
    empty = WorkloadReport(agent="eager", device="cpu", workload="w", run="r", seconds=0)
    assert empty.S == 0.0
    for text in (printed(empty), render.markdown(empty), render.html(empty)):
        assert "eager" in text


def test_fast_p_is_that_of_the_paper(benched: WorkloadReport) -> None:
    gains = [3.0, 1.5, 1.0, None, None]  # none: accepted but not beside eager, and rejected
    results = [result(one, 10.0, gain=gain) for one, gain in zip(CASES[:4], gains[:4], strict=True)]
    scored = score_cases(CASES, [*results, result(CASES[4], None, accepted=False)])
    once, twice = benched.model_copy(update={"cases": scored}).fast_p or ()
    assert (once.p, once.cases, once.weight) == (1, pytest.approx(2 / 5), pytest.approx(0.4))
    assert (twice.p, twice.cases, twice.weight) == (2, pytest.approx(1 / 5), pytest.approx(0.2))


def test_what_was_never_beside_eager_is_unknown_and_what_was_rejected_is_not(
    benched: WorkloadReport,
) -> None:
    alone = score_cases(CASES, [result(one, 10.0) for one in CASES[:4]])
    unknown = benched.model_copy(update={"cases": alone, "entrants": ()})
    assert unknown.fast_p is None
    assert dict(facts(unknown))["fast_p"] == "not measured beside eager"
    wrong = score_cases(CASES, [result(one, None, accepted=False) for one in CASES])
    rejected = benched.model_copy(update={"cases": wrong, "entrants": ()})
    assert [(one.cases, one.weight) for one in rejected.fast_p or ()] == [(0.0, 0.0), (0.0, 0.0)]


def with_costs(report: WorkloadReport, dollars: float | None) -> WorkloadReport:
    """S is 0.16, which is 16 points; attention's file is its own kernel, rms_norm's in part."""
    asked = Spending(calls=9, input_tokens=30_000, output_tokens=2_000, dollars=dollars)
    attention, norm, topk = (one.model_dump() for one in report.entrants)
    entrants = (
        attention | {"fallback": "kernel", "spent": asked.model_dump()},
        norm | {"fallback": "partial"},
        topk,
    )
    data = report.model_dump() | {"spent": asked.model_dump(), "entrants": entrants}
    return WorkloadReport.model_validate(data)


def test_fallback_shares_and_the_price_of_a_point(benched: WorkloadReport, tmp_path: Path) -> None:
    priced = with_costs(benched, 0.8)
    assert priced.fallbacks == {"kernel": pytest.approx(0.4), "partial": pytest.approx(0.2)}
    assert priced.tokens_per_point == pytest.approx(2000)
    assert priced.dollars_per_point == pytest.approx(0.05)
    for text in (printed(priced), render.markdown(priced), render.html(priced)):
        for part in (
            "kernel 40.0% · partial 20.0% of the weight",
            "2,000 tokens, $0.05",
            "accepted, partial",
        ):
            assert part in text, part
        for part in ("faster than eager: 20.0% of cases", "9 calls, 32000 tokens, $0.80"):
            assert part in text, part
    path = tmp_path / "report.json"
    path.write_text(priced.model_dump_json())
    assert load_any_report(path) == priced
    data = json.loads(path.read_text())
    assert data["fallbacks"] == {"kernel": pytest.approx(0.4), "partial": pytest.approx(0.2)}
    assert (data["fast_p"][0]["p"], data["tokens_per_point"]) == (1, pytest.approx(2000))


def test_an_unknown_price_and_no_point_at_all(benched: WorkloadReport) -> None:
    unpriced = with_costs(benched, None)
    assert unpriced.dollars_per_point is None
    assert dict(facts(unpriced))["per point of S"] == "2,000 tokens, price unknown"
    nothing = WorkloadReport.model_validate(unpriced.model_dump() | {"cases": score_cases(CASES, [])})
    assert (nothing.tokens_per_point, nothing.dollars_per_point) == (None, None)
    assert dict(facts(nothing))["per point of S"] == "–"
    assert not {"asked", "per point of S", "fallbacks"} & set(dict(facts(benched)))


def test_a_report_from_before_these_figures_loads(benched: WorkloadReport, tmp_path: Path) -> None:
    data = benched.model_dump(mode="json")
    for name in ("fast_p", "fallbacks", "spent", "tokens_per_point", "dollars_per_point"):
        del data[name]
    for entrant in data["entrants"]:
        del entrant["fallback"], entrant["spent"]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data))
    assert load_any_report(path) == benched
    data["entrants"][0]["fallback"] = "own"
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match=r"field entrants\.0\.fallback"):
        load_any_report(path)
