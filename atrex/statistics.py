"""Medians with their uncertainty, and paired ratios with distribution-free intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from atrex.records import Ratio

_MAD_TO_SIGMA = 1.4826  # normal consistency of the median absolute deviation
_MEDIAN_EFFICIENCY = math.sqrt(math.pi / 2)  # asymptotic standard error of the median over the mean's


def relative_error(samples: Sequence[float]) -> float:
    """Standard error of the median over the median, from the median absolute deviation; inf below 3."""
    if len(samples) < 3:
        return math.inf
    values = np.asarray(samples)
    median = float(np.median(values))
    sigma = _MAD_TO_SIGMA * float(np.median(np.abs(values - median)))
    return _MEDIAN_EFFICIENCY * sigma / math.sqrt(len(values)) / median if median > 0 else math.inf


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], *, confidence: float = 0.95) -> Ratio:
    """Median over rounds of theirs / ours (above 1: ours is faster), with its interval.

    Both sequences hold one time per round, in the same order.
    """
    return median_ratio(np.asarray(theirs) / np.asarray(ours), confidence)


def median_ratio(ratios: np.ndarray, confidence: float = 0.95) -> Ratio:
    """Median of positive ratios between two of their order statistics.

    A value lies above the true median as often as below, so the k-th smallest and the k-th largest of n
    hold it between them unless fewer than k of n fair coins fall on one side: exact for any distribution
    and any n, where a bootstrap of so few rounds is too narrow (W. J. Conover, Practical Nonparametric
    Statistics, section 3.2). Below 6 values not even the extremes reach 95 %; `confidence` then says what
    they do reach.
    """
    n = len(ratios)
    below = np.cumsum([math.comb(n, k) for k in range(n + 1)]) / 2**n  # P(at most k of n values below)
    depth = max(1, int(np.searchsorted(below, (1 - confidence) / 2, side="right")))
    ordered = np.sort(ratios)
    return Ratio(
        median=float(np.median(ratios)),
        low=float(ordered[depth - 1]),
        high=float(ordered[n - depth]),
        n=n,
        confidence=min(confidence, 1 - 2 * float(below[0])) if depth == 1 else confidence,
    )
