"""Means over few runs with Student's t intervals, and Welch's interval of a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

import numpy as np

from atrex.records import Record

CONFIDENCE = 0.95
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


class Estimate(Record):
    """A mean or a difference over `n` runs; without an interval where there are too few for one."""

    value: float
    low: float | None = None
    high: float | None = None
    n: int

    @property
    def beyond_noise(self) -> bool:
        """The interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def mean(values: Sequence[float]) -> Estimate:
    """Mean with its interval over n - 1 degrees of freedom; one value has none. Raises for no value."""
    n, centre = len(values), fmean(values)
    if n < 2:
        return Estimate(value=centre, n=n)
    return _estimate(centre, variance(values) / n, n - 1, n)


def mean_of_amounts(values: Sequence[float]) -> Estimate:
    """The same for what cannot be negative: the interval ends at 0, which costs it no coverage."""
    found = mean(values)
    return found if found.low is None else found.model_copy(update={"low": max(0.0, found.low)})


def geometric(values: Sequence[float]) -> Estimate:
    """Geometric mean of positive values; the interval is that of the mean logarithm."""
    logs = mean([math.log(value) for value in values])
    low, high = (None if edge is None else math.exp(edge) for edge in (logs.low, logs.high))
    return Estimate(value=math.exp(logs.value), low=low, high=high, n=logs.n)


def difference(first: Sequence[float], other: Sequence[float]) -> Estimate:
    """Mean of `other` less that of `first`; no interval unless both have two values.

    B. L. Welch, Biometrika 34 (1947): unequal variances, degrees of freedom after Satterthwaite. Where
    neither varies at all the interval is the difference itself.
    """
    n, value = len(first) + len(other), fmean(other) - fmean(first)
    if min(len(first), len(other)) < 2:
        return Estimate(value=value, n=n)
    parts = [(variance(values) / len(values), len(values) - 1) for values in (first, other)]
    total = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    return _estimate(value, total, total**2 / spread if spread else n - 2, n)


def _estimate(value: float, squared_error: float, freedom: float, n: int) -> Estimate:
    reach = t_quantile(freedom) * math.sqrt(squared_error)
    return Estimate(value=value, low=value - reach, high=value + reach, n=n)


def t_quantile(freedom: float, confidence: float = CONFIDENCE) -> float:
    """The t that |T| stays below with this probability, for 1 to some hundreds of degrees of freedom.

    With t = √ν·tan φ the density of T becomes C·cos^(ν-1) φ, C = Γ((ν+1)/2) / (√π·Γ(ν/2)), which is smooth
    on a finite range: Gauss–Legendre integrates it, bisection inverts the integral. ν need not be whole.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: float) -> float:
    """P(|T| <= √ν·tan angle)."""
    constant = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    heights = np.cos(angle / 2 * (_NODES + 1)) ** (freedom - 1)
    return float(constant * angle * np.dot(_WEIGHTS, heights))
