"""Scores against values worked out by hand, and the properties that must hold for any."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from atrex.records import Bound, Case, Latency, Phase, Ratio, Result
from atrex.score import (
    CaseScore,
    fleet_saving,
    geometric_mean,
    harmonic_mean,
    of_candidate,
    score,
    score_cases,
    score_workload,
)


def case(
    name: str, operator: str = "op", phase: Phase = "prefill", weight: float = 1.0, us: float = 0
) -> Case:
    known = {"H200": us} if us else {}
    return Case(operator=operator, id=name, input={}, phase=phase, weight=weight, production_us=known)


def measured(name: str, S: float, operator: str = "op", attainable: float | None = 2.0) -> Result:
    median = 1.0 / S
    return Result(
        candidate="k",
        operator=operator,
        case=name,
        policy="p",
        accepted=True,
        latency=Latency(median_us=median, p10_us=median, p90_us=median, n=5, method="wall"),
        bound=Bound(sol_us=1.0, attainable_us=attainable, limiter="memory"),
    )


def rejected(name: str, operator: str = "op", accepted: bool = False) -> Result:
    return Result(
        candidate="k",
        operator=operator,
        case=name,
        policy="p",
        accepted=accepted,
        latency=None,
        bound=Bound(sol_us=1.0, attainable_us=2.0, limiter="memory"),
    )


def ratio(median: float, low: float, high: float, confidence: float = 0.95) -> Ratio:
    return Ratio(median=median, low=low, high=high, n=50, confidence=confidence)


def test_a_missing_or_failed_case_counts_zero_and_is_named() -> None:
    cases = [case("good"), case("bad"), case("gone"), case("later")]
    results = [
        measured("good", 0.8),
        rejected("bad"),
        rejected("later", accepted=True),
        measured("other", 1.0),
    ]
    total = score(score_cases(cases, results))
    s, a = total.S, total.A
    assert (s, a) == (pytest.approx(0.8 / 4), pytest.approx(1.6 / 4))
    assert (total.missing, total.failed, total.unmeasured) == (("gone",), ("bad",), ("later",))
    assert not total.accepted


def test_no_case_and_no_result() -> None:
    assert (score([]).S, score([]).A, score([]).accepted) == (0.0, 0.0, False)
    nothing = score_workload(score_cases([case("a")], []))
    assert (nothing.S, nothing.coverage, nothing.harmonic, nothing.harmonic_measured) == (0, 0, 0, None)
    assert score_workload([]).S == 0.0


def test_one_case_is_its_own_score() -> None:
    total = score_workload(score_cases([case("a")], [measured("a", 0.6)]))
    assert (total.S, total.harmonic, total.coverage, total.measured) == pytest.approx((0.6, 0.6, 1, 1))
    assert total.phases == {"prefill": pytest.approx(0.6)}


def test_A_is_unknown_rather_than_zero_where_the_machine_is_not_calibrated() -> None:
    scores = score_cases([case("a"), case("b")], [measured("a", 0.5), measured("b", 0.5, attainable=None)])
    assert score(scores).A is None
    assert score_workload(scores).A is None


def test_cases_of_an_operator_count_by_their_weights() -> None:
    """Nine tenths of the operator at 0.9, a tenth at 0.1; another operator of the same weight at 0.4."""
    cases = [case("x1", "x", weight=0.45), case("x2", "x", "decode", weight=0.05), case("y", "y", weight=0.5)]
    results = [measured("x1", 0.9, "x"), measured("x2", 0.1, "x"), measured("y", 0.4, "y")]
    total = score_workload(score_cases(cases, results))
    assert pytest.approx(0.82) == total.operators["x"].S
    assert pytest.approx(1.64) == total.operators["x"].A
    assert (pytest.approx(0.61), pytest.approx(1.22)) == (total.S, total.A)
    assert total.phases == {
        "prefill": pytest.approx((0.45 * 0.9 + 0.5 * 0.4) / 0.95),
        "decode": pytest.approx(0.1),
    }
    missing = score(score_cases(cases[:2], results[1:2]))  # the heavy case counts 0
    assert pytest.approx(0.01) == missing.S


@given(
    st.lists(st.floats(min_value=1e-3, max_value=1.0), min_size=1, max_size=12),
    st.floats(min_value=0.0, max_value=1.0),
)
def test_cases_of_one_weight_give_the_plain_mean_to_the_last_bit(values: list[float], weight: float) -> None:
    cases = [case(str(n), weight=weight) for n in range(len(values))]
    scores = score_cases(cases, [measured(str(n), value) for n, value in enumerate(values)])
    plain = math.fsum(one.S for one in scores) / len(values)
    assert plain == score(scores).S
    assert math.fsum(one.A or 0.0 for one in scores) / len(values) == score(scores).A


def test_operators_are_weighted_and_phases_apart() -> None:
    cases = [
        case("x1", "x", "prefill", 0.1),
        case("x2", "x", "decode", 0.1),
        case("y1", "y", "decode", 0.6),
    ]
    results = [measured("x1", 0.9, "x"), measured("x2", 0.5, "x"), rejected("y1", "y")]
    total = score_workload(score_cases(cases, results))
    s = total.S
    assert s == pytest.approx(0.2 * 0.7 / 0.8)
    assert total.phases == {"prefill": pytest.approx(0.9), "decode": pytest.approx(0.1 * 0.5 / 0.7)}
    assert total.coverage == pytest.approx(0.25)
    assert total.harmonic == 0.0
    assert total.harmonic_measured == pytest.approx(0.2 / (0.1 / 0.9 + 0.1 / 0.5))
    assert total.measured == pytest.approx(0.25)


@given(st.lists(st.floats(min_value=1e-3, max_value=1.0), min_size=1, max_size=8))
def test_the_harmonic_form_never_exceeds_the_mean(values: list[float]) -> None:
    cases = [case(str(n)) for n in range(len(values))]
    scores = score_cases(cases, [measured(str(n), value) for n, value in enumerate(values)])
    assert min(values) - 1e-9 <= harmonic_mean(scores) <= score(scores).S + 1e-9


def test_saving_counts_only_this_accelerator_and_only_what_was_measured() -> None:
    cases = [case("fast", us=4.0, weight=3), case("slow", us=1.0), case("gone", us=9.0), case("unknown")]
    saving = fleet_saving(score_cases(cases, [measured("fast", 0.5), measured("slow", 0.5)]), "H200")
    assert saving is not None
    assert saving.share == pytest.approx((3 * (1 - 2 / 4) + (1 - 2 / 1) + 0) / 5)
    assert (saving.known, saving.cases) == (pytest.approx(5 / 6), 3)
    assert fleet_saving(score_cases(cases, []), "XPU-A") is None


def test_two_results_for_one_case_are_refused() -> None:
    two = [measured("a", 0.5), measured("a", 0.6).model_copy(update={"candidate": "other"})]
    with pytest.raises(ValueError, match="two results for case a"):
        score_cases([case("a")], two)
    assert score_cases([case("a")], of_candidate(two, "k"))[0].S == 0.5


def test_a_score_cannot_hold_another_cases_result() -> None:
    with pytest.raises(ValidationError, match="the result is for"):
        CaseScore(case=case("a"), result=measured("b", 0.5))


def test_a_dumped_score_is_recomputed_on_loading() -> None:
    one = CaseScore(case=case("a"), result=measured("a", 0.5))
    forged = one.model_dump(mode="json") | {"S": 0.99, "standing": "measured"}
    assert CaseScore.model_validate(forged).S == 0.5


def test_the_geometric_mean_of_one_case_keeps_its_interval() -> None:
    mean = geometric_mean([ratio(2.0, 1.5, 2.2)])
    assert mean is not None
    assert (mean.median, mean.low, mean.high, mean.n) == (
        pytest.approx(2),
        pytest.approx(1.5),
        pytest.approx(2.2),
        1,
    )
    assert geometric_mean([]) is None


def test_the_interval_narrows_with_the_root_of_the_cases() -> None:
    mean = geometric_mean([ratio(4.0, 4.0 / 1.1, 4.0 * 1.1)] * 4)
    assert mean is not None
    assert mean.median == pytest.approx(4.0)
    assert math.log(mean.high / 4.0) == pytest.approx(math.log(1.1) / 2)


def test_intervals_of_another_confidence_are_brought_to_95_per_cent() -> None:
    mean = geometric_mean([ratio(1.0, math.exp(-1.6448536), math.exp(1.6448536), confidence=0.9)])
    assert mean is not None
    assert math.log(mean.high) == pytest.approx(1.959964)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    import random

    draw, hits, sigma = random.Random(3), 0, 0.05
    for _ in range(1000):
        logs = [math.log(3.0) + draw.gauss(0, sigma) for _ in range(6)]
        half = 1.959964 * sigma
        mean = geometric_mean([ratio(math.exp(x), math.exp(x - half), math.exp(x + half)) for x in logs])
        assert mean is not None
        hits += mean.low <= 3.0 <= mean.high
    assert 930 <= hits <= 970


def test_a_ratio_at_or_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        geometric_mean([ratio(1.0, 0.0, 2.0)])
