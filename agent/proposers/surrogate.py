"""What timings say about configurations that were not timed: a Gaussian process over the tunables.

A timing is the logarithm of a speed-up over some base. Configurations that differ in few tunables, and by few
values, are expected to be alike; so are neighbouring buckets. Every base has a level of its own, which is
inferred as well: what was timed against an earlier incumbent still counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from agent.buckets import Bucket
from agent.lab import Config, Tunables
from atrex.records import Ratio, Scalar

ALIKE = 0.8  # correlation of two configurations that differ by one value of one tunable
BUCKETS_ALIKE = 0.6  # of one configuration in two neighbouring buckets
EXPECTED_SPREAD = 0.1  # of ln(time) over configurations, before anything is known
LEVEL_SPREAD = 3.0  # of a base's level, in spreads of configurations
LEAST_ERROR = 0.002  # of one timing: processes differ by more than their rounds do
MOST = 512  # timings that are looked at, the latest; what one proposal costs grows with their cube
_NORMAL_95 = 1.96

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Timing:
    """A configuration in a bucket, and ln(speed-up) over what it was timed against."""

    bucket: Bucket
    config: Config
    base: str
    gain: float
    error: float
    """Standard error of the gain."""

    @classmethod
    def of(cls, bucket: Bucket, config: Config, base: str, ratio: Ratio) -> Self:
        """From a paired ratio and its interval."""
        error = math.log(ratio.high / ratio.low) / (2 * _NORMAL_95)
        return cls(bucket, config, base, math.log(ratio.median), max(error, LEAST_ERROR))

    @classmethod
    def itself(cls, bucket: Bucket, config: Config, base: str) -> Self:
        """A base's own configuration: no faster than itself."""
        return cls(bucket, config, base, 0.0, LEAST_ERROR)


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is expected of some configurations: ln(speed-up) over a base, and its standard deviation."""

    mean: Array
    deviation: Array


class Surrogate:
    """A Gaussian process, conditioned on timings."""

    def __init__(self, tunables: Tunables, timings: Sequence[Timing]) -> None:
        """`timings` holds at least one; the latest MOST of them are used."""
        self._tunables = tunables
        known = timings[-MOST:]
        self._points = _Points.of(known, tunables)
        gains = np.array([timing.gain for timing in known])
        errors = np.array([timing.error for timing in known])
        self._scale = _spread(gains) ** 2
        covariance = self._covariance(self._points, self._points) + np.diag(errors**2)
        self._whitener = np.linalg.inv(np.linalg.cholesky(covariance))
        self._residuals = self._whitener @ gains

    def expect(self, bucket: Bucket, configs: Sequence[Config], base: str) -> Expectation:
        """What is expected of configurations in a bucket, against a base."""
        asked = _Points.of([Timing.itself(bucket, config, base) for config in configs], self._tunables)
        shared = self._whitener @ self._covariance(self._points, asked)
        variance = self._scale * (1 + LEVEL_SPREAD**2) - np.sum(shared**2, axis=0)
        return Expectation(shared.T @ self._residuals, np.sqrt(np.maximum(variance, 0.0)))

    def imagine(self, bucket: Bucket, config: Config, base: str) -> None:
        """Go on as if this had been timed, too, and had come out as expected."""
        new = _Points.of([Timing.itself(bucket, config, base)], self._tunables)
        shared = self._whitener @ self._covariance(self._points, new)[:, 0]
        variance = self._scale * (1 + LEVEL_SPREAD**2) + LEAST_ERROR**2 - float(shared @ shared)
        row = np.append(-(shared @ self._whitener), 1.0) / math.sqrt(max(variance, LEAST_ERROR**2))
        self._whitener = np.vstack([np.pad(self._whitener, ((0, 0), (0, 1))), row])
        self._residuals = np.append(self._residuals, 0.0)
        self._points = self._points + new

    def _covariance(self, one: _Points, other: _Points) -> Array:
        near = ALIKE ** _distance(one.places, other.places)
        near *= BUCKETS_ALIKE ** _distance(one.buckets, other.buckets)
        level = (one.levels[:, None] == other.levels[None, :]) * LEVEL_SPREAD**2
        return np.asarray(self._scale * (near + level))


@dataclass(frozen=True, slots=True)
class _Points:
    """Timings as numbers: places on the grid of tunables and on that of buckets, and whose level."""

    places: Array
    buckets: Array
    levels: NDArray[np.str_]

    @classmethod
    def of(cls, timings: Sequence[Timing], tunables: Tunables) -> Self:
        return cls(
            np.array([_place(timing.config, tunables) for timing in timings], dtype=float),
            np.array([timing.bucket.index for timing in timings], dtype=float),
            np.array([f"{timing.bucket.index} {timing.base}" for timing in timings]),
        )

    def __add__(self, other: _Points) -> _Points:
        return _Points(
            np.concatenate([self.places, other.places]),
            np.concatenate([self.buckets, other.buckets]),
            np.concatenate([self.levels, other.levels]),
        )


def _place(config: Config, tunables: Tunables) -> list[float]:
    """Coordinates whose city-block distance counts the steps between two configurations."""
    found: list[float] = []
    for name, values in tunables.items():
        if isinstance(values[0], int | float):
            found.append(float(_index(config.get(name), values)))
        else:  # without an order: any two values are one step apart
            found += [0.5 * (config.get(name) == value) for value in values]
    return found


def _index(value: Scalar | None, values: tuple[Scalar, ...]) -> int:
    return values.index(value) if value in values else -1


def _distance(one: Array, other: Array) -> Array:
    return np.asarray(np.abs(one[:, None, :] - other[None, :, :]).sum(axis=2))


def _spread(gains: Array) -> float:
    """Root mean square of the gains, with the expectation counted as one of them."""
    return math.sqrt((EXPECTED_SPREAD**2 + float(np.sum(gains**2))) / (1 + len(gains)))


def improvement(expected: Expectation, best: float) -> Array:
    """Expected gain beyond `best`, a loss counting as none."""
    deviation = np.maximum(expected.deviation, 1e-12)
    above = (expected.mean - best) / deviation
    density = np.exp(-(above**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in above])
    return np.asarray(deviation * (above * below + density))
