"""Promotion: intervals decide, one clear regression forbids, and a judge's silence teaches nothing."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from agent import promote
from agent.lab import Comparison
from agent.promote import PromotionPolicy
from atrex.records import Ratio, Status, Verdict

POLICY = PromotionPolicy(margin=0.01)


def ratio(low: float, median: float, high: float) -> Ratio:
    return Ratio(median=median, low=low, high=high, n=30)


def compared(*ratios: tuple[float, float, float]) -> dict[str, Comparison]:
    return {str(i): Comparison(ratio=ratio(*r), candidate_us=1, incumbent_us=1) for i, r in enumerate(ratios)}


def test_the_mean_of_one_case_is_that_case() -> None:
    one = promote.geometric_mean([ratio(0.9, 1.0, 1.3)])
    assert (one.low, one.median, one.high) == pytest.approx((0.9, 1.0, 1.3))


def test_half_widths_add_in_squares_and_weights_count() -> None:
    same = promote.geometric_mean([ratio(math.exp(-0.1), 1.0, math.exp(0.2))] * 4)
    assert (math.log(same.low), math.log(same.high)) == pytest.approx((-0.05, 0.1))
    weighted = promote.geometric_mean([ratio(2, 2, 2), ratio(8, 8, 8)], [3, 1])
    assert weighted.median == pytest.approx(2**1.5)
    assert promote.geometric_mean([ratio(2, 2, 2), ratio(8, 8, 8)], [0, 0]).median == pytest.approx(4)
    with pytest.raises(ValueError, match="at least one"):
        promote.geometric_mean([])


def test_the_interval_of_the_mean_covers_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(1)
    hits = 0
    for _ in range(1000):
        cases = []
        for error in (0.01, 0.05, 0.02):
            seen = rng.gauss(0, error)
            cases.append(ratio(*(math.exp(seen + z * error) for z in (-1.96, 0, 1.96))))
        mean = promote.geometric_mean(cases)
        hits += mean.low <= 1 <= mean.high
    assert 0.93 < hits / 1000 < 0.97


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ([(1.01, 1.05, 1.10)], True),
        ([(0.99, 1.05, 1.10)], False),  # includes "no better"
        ([(1.30, 1.40, 1.50), (0.90, 0.93, 0.97)], False),  # one case certainly regresses
        ([(1.30, 1.40, 1.50), (0.90, 0.97, 1.02)], True),  # that one is within its noise
        ([(1.30, 1.40, 1.50), (0.990, 0.994, 0.995)], True),  # that one is within the margin
        ([(0.97, 1.02, 1.08)] * 9, True),  # none alone is certain, all together are
    ],
)
def test_a_bucket_is_better_by_its_interval_and_without_a_regression(
    ratios: list[tuple[float, float, float]], expected: bool
) -> None:
    assert promote.better(compared(*ratios), POLICY) is expected


def test_the_least_gain_must_lie_below_the_whole_interval() -> None:
    strict = PromotionPolicy(least_gain=0.02)
    assert not promote.better(compared((1.01, 1.05, 1.1)), strict)
    assert promote.better(compared((1.03, 1.05, 1.1)), strict)


def test_a_start_may_trade_one_case_for_the_others_by_weight() -> None:
    mixed = compared((1.30, 1.40, 1.50), (0.90, 0.93, 0.97))
    assert promote.better_start(mixed, POLICY, {"0": 1, "1": 1})
    assert not promote.better_start(mixed, POLICY, {"0": 1, "1": 50})


def test_silence_and_harness_errors_are_not_the_candidates_fault(synthetic: Any) -> None:
    passed = synthetic.judgement(synthetic.EAGER, "full", None)
    failed = synthetic.judgement(synthetic.EAGER, "full", "32x128")
    assert promote.judged(passed) == "accepted"
    assert promote.judged(failed) == "wrong"
    assert promote.reason(failed) == "accuracy: planted"
    assert promote.witnesses(failed) == {"32x128"}
    silent = passed.model_copy(update={"verdicts": ()})
    assert promote.judged(silent) == "unjudged"
    assert "accuracy" in promote.reason(silent)
    for status, expected in [
        (Status.ERROR, "unjudged"),
        (Status.INCONCLUSIVE, "unjudged"),
        (Status.UNSUPPORTED, "wrong"),
    ]:
        verdict = Verdict(gate="accuracy", status=status, tolerance_free=False, reason="r")
        judgement = passed.model_copy(update={"verdicts": (verdict,)})
        assert promote.judged(judgement) == expected
    allowed = judgement.model_copy(update={"may_be_unsupported": ("accuracy",)})
    assert promote.judged(allowed) == "accepted"
