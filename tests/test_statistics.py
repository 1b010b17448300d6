"""Statistics: intervals cover what they claim to, twice the same, and pairing removes what is shared."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atrex.records import Ratio
from atrex.statistics import median_ratio, paired_ratio, relative_error


def experiment(
    generator: np.random.Generator, rounds: int, ratio: float, *, noise: float = 0.02, drift: float = 0.0
) -> Ratio:
    """Two candidates, `ratio` apart, in rounds that share a random walk."""
    common = np.exp(np.cumsum(generator.normal(0, drift, rounds)))
    ours = 100 * common * np.exp(generator.normal(0, noise, rounds))
    theirs = 100 * ratio * common * np.exp(generator.normal(0, noise, rounds))
    return paired_ratio(list(ours), list(theirs))


class TestPairedRatio:
    @pytest.mark.parametrize("rounds", [6, 9, 20, 40])
    @pytest.mark.parametrize("drift", [0.0, 0.1])
    def test_the_interval_covers_the_truth(self, rounds: int, drift: float) -> None:
        generator = np.random.default_rng(rounds)
        found = [experiment(generator, rounds, 1.25, drift=drift) for _ in range(600)]
        covered = sum(ratio.low <= 1.25 <= ratio.high for ratio in found) / len(found)
        assert 0.94 <= covered <= 0.995

    def test_no_difference_is_an_answer(self) -> None:
        generator = np.random.default_rng(5)
        found = [experiment(generator, 20, 1.0) for _ in range(300)]
        assert sum(ratio.better for ratio in found) < 0.07 * len(found)
        assert sum(ratio.worse for ratio in found) < 0.07 * len(found)

    def test_a_clear_difference_is_seen(self) -> None:
        generator = np.random.default_rng(6)
        assert all(experiment(generator, 9, 1.2).better for _ in range(50))
        assert all(experiment(generator, 9, 0.8).worse for _ in range(50))

    def test_pairing_removes_common_drift(self) -> None:
        generator = np.random.default_rng(7)
        common = np.exp(np.cumsum(generator.normal(0, 0.3, 15)))
        ratio = paired_ratio(list(10 * common), list(15 * common))
        assert (ratio.median, ratio.low, ratio.high) == pytest.approx((1.5, 1.5, 1.5))
        assert common.max() / common.min() > 2  # the drift alone is larger than the difference
        mixed = paired_ratio(list(10 * common), list(generator.permutation(15 * common)))
        assert mixed.high - mixed.low > 0.1

    def test_above_one_ours_is_faster(self) -> None:
        assert paired_ratio([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]).better

    def test_swapping_the_two_inverts_the_ratio(self) -> None:
        generator = np.random.default_rng(8)
        ours, theirs = (list(np.exp(generator.normal(0, 0.1, 11))) for _ in range(2))
        one, other = paired_ratio(ours, theirs), paired_ratio(theirs, ours)
        assert (other.median, other.low, other.high) == pytest.approx(
            (1 / one.median, 1 / one.high, 1 / one.low)
        )

    def test_it_lies_between_order_statistics(self) -> None:
        nine = median_ratio(np.array([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]))
        assert (nine.low, nine.median, nine.high, nine.n, nine.confidence) == (2.0, 5.0, 8.0, 9, 0.95)
        half = median_ratio(np.array([1.0, 1.5, 2.0, 1.4, 1.6]), confidence=0.5)
        assert (half.low, half.median, half.high, half.confidence) == (1.4, 1.5, 1.6, 0.5)

    @pytest.mark.parametrize(("n", "confidence"), [(1, 0.0), (2, 0.5), (5, 0.9375), (6, 0.95)])
    def test_too_few_values_reach_less(self, n: int, confidence: float) -> None:
        ratio = median_ratio(np.arange(1.0, n + 1))
        assert (ratio.low, ratio.high, ratio.confidence) == (1.0, n, confidence)

    def test_one_wild_round_moves_the_median_little(self) -> None:
        ours, theirs = [1.0] * 15, [1.3, 1.31, 1.29] * 5
        wild = paired_ratio([*ours[:-1], 50.0], theirs)
        assert wild.median == pytest.approx(1.3, rel=0.01)
        assert wild.better


class TestRelativeError:
    def test_it_is_the_spread_of_medians(self) -> None:
        generator = np.random.default_rng(3)
        samples = generator.normal(100, 5, (400, 40))
        spread = float(np.std(np.median(samples, axis=1))) / 100
        estimated = float(np.mean([relative_error(list(row)) for row in samples]))
        assert estimated == pytest.approx(spread, rel=0.15)

    def test_it_shrinks_with_the_root_of_the_number(self) -> None:
        few, many = [90.0, 100.0, 110.0], [90.0, 100.0, 110.0] * 4
        assert relative_error(few) == pytest.approx(2 * relative_error(many))

    def test_it_has_no_unit(self) -> None:
        samples = [90.0, 100.0, 110.0, 95.0]
        assert relative_error([1e3 * s for s in samples]) == pytest.approx(relative_error(samples))

    @pytest.mark.parametrize("samples", [[], [1.0], [1.0, 1.0], [0.0, 0.0, 0.0]])
    def test_too_little_to_say(self, samples: list[float]) -> None:
        assert relative_error(samples) == math.inf

    def test_equal_samples_have_none(self) -> None:
        assert relative_error([3.0, 3.0, 3.0]) == 0.0
