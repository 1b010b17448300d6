"""Medians with their uncertainty, and paired ratios with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from atrex.records import Ratio

_RESAMPLES = 2000
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
    """Median over rounds of theirs / ours (above 1: ours is faster), percentile bootstrap over rounds.

    Both sequences hold one time per round, in the same order. The resampling seed is fixed, so the
    same samples always give the same interval.
    """
    ratios = np.asarray(theirs) / np.asarray(ours)
    return bootstrap_median(ratios, confidence)


def bootstrap_median(ratios: np.ndarray, confidence: float = 0.95) -> Ratio:
    """Median of positive ratios with a percentile bootstrap interval."""
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(ratios), size=(_RESAMPLES, len(ratios)))
    medians = np.median(ratios[picks], axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(medians, [tail, 1 - tail])
    return Ratio(
        median=float(np.median(ratios)),
        low=float(low),
        high=float(high),
        n=len(ratios),
        confidence=confidence,
    )
