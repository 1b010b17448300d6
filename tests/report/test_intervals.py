"""Student's t and Welch, against tables, against the density itself, and on paper."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atrex.report.intervals import difference, geometric, mean, mean_of_amounts, t_quantile

TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 10: 2.228, 30: 2.042, 120: 1.980}  # two-sided, 95 %
FIRST = (0.10, 0.12, 0.14)  # variance 0.0004


@pytest.mark.parametrize(("freedom", "expected"), TABLE.items())
def test_quantiles_of_the_printed_table(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, abs=6e-4)


@pytest.mark.parametrize("freedom", [1.3, 1.684, 2.5, 7.9])
def test_a_broken_number_of_degrees_holds_the_mass_of_the_density(freedom: float) -> None:
    t = np.linspace(0, t_quantile(freedom), 200_001)
    scale = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(freedom * math.pi)
    density = scale * (1 + t**2 / freedom) ** (-(freedom + 1) / 2)
    assert float(np.sum((density[1:] + density[:-1]) * np.diff(t))) == pytest.approx(0.95)


def test_a_mean_over_seeds() -> None:
    found = mean(FIRST)
    reach = 4.30265 * 0.02 / math.sqrt(3)
    assert (found.value, found.n) == (pytest.approx(0.12), 3)
    assert (found.low, found.high) == (pytest.approx(0.12 - reach), pytest.approx(0.12 + reach))
    one = mean([0.3])
    assert (one.value, one.low, one.high, one.n) == (0.3, None, None, 1)
    same = mean([0.5, 0.5])
    assert (same.low, same.high) == (0.5, 0.5)


def test_an_amount_is_not_negative() -> None:
    assert mean([1.0, 9.0]).low == pytest.approx(5 - 12.7062 * 4, rel=1e-5)
    assert mean_of_amounts([1.0, 9.0]).low == 0.0
    assert mean_of_amounts([1.0]).low is None


def test_welch_with_equal_variances_has_all_the_degrees() -> None:
    found = difference(FIRST, (0.30, 0.32, 0.34))
    reach = 2.776445 * math.sqrt(2 * 0.0004 / 3)
    assert (found.value, found.n) == (pytest.approx(0.2), 6)
    assert (found.low, found.high) == (pytest.approx(0.2 - reach), pytest.approx(0.2 + reach))
    assert found.beyond_noise


def test_welch_with_unequal_ones_has_fewer() -> None:
    found = difference(FIRST, (0.30, 0.34))  # s²/n: 4/30000 and 12/30000; (16²)/(4²/2 + 12²/1) = 32/19
    reach = t_quantile(32 / 19) * math.sqrt(16 / 30000)
    assert (found.low, found.high) == (pytest.approx(0.2 - reach), pytest.approx(0.2 + reach))
    assert t_quantile(2) < t_quantile(32 / 19) < t_quantile(1)


def test_one_run_a_side_is_no_interval() -> None:
    found = difference((0.1, 0.2), (0.5,))
    assert (found.value, found.low, found.high) == (pytest.approx(0.35), None, None)
    assert not found.beyond_noise
    steady = difference((0.1, 0.1), (0.4, 0.4))
    assert (steady.low, steady.high) == (pytest.approx(0.3), pytest.approx(0.3))


def test_speed_ups_are_averaged_by_their_logarithms() -> None:
    found = geometric([2.0, 8.0])
    reach = 12.7062047 * math.log(2)  # the logs are one log 2 on either side of log 4
    assert found.value == pytest.approx(4.0)
    assert (found.low, found.high) == (
        pytest.approx(4 * math.exp(-reach), rel=1e-5),
        pytest.approx(4 * math.exp(reach), rel=1e-5),
    )
