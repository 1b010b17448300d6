"""The surrogate: what it expects of configurations that were timed, that are near those, and that are far."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from agent.buckets import Bucket, Grid
from agent.lab import Config, Tunables
from agent.proposers.surrogate import (
    LEAST_ERROR,
    MOST,
    Expectation,
    Surrogate,
    Timing,
    improvement,
)
from atrex.records import Ratio

TUNABLES: Tunables = {"warps": (1, 2, 4, 8), "rows": (1, 2, 4, 8), "cache": ("default", "stream")}
BUCKETS = Grid({"tokens": (8, 64, 512)}).buckets


def config(warps: int, rows: int = 1, cache: str = "default") -> Config:
    return {"warps": warps, "rows": rows, "cache": cache}


def timing(bucket: Bucket, of: Config, gain: float, base: str = "base") -> Timing:
    return Timing(bucket, of, base, gain, LEAST_ERROR)


def expected(surrogate: Surrogate, bucket: Bucket, of: Config, base: str = "base") -> tuple[float, float]:
    found = surrogate.expect(bucket, [of], base)
    return float(found.mean[0]), float(found.deviation[0])


def test_what_was_timed_is_expected_and_uncertainty_grows_with_the_distance() -> None:
    here = BUCKETS[0]
    known = [timing(here, config(1), 0.0), timing(here, config(2), 0.2)]
    surrogate = Surrogate(TUNABLES, known)
    for each in known:
        mean, deviation = expected(surrogate, here, each.config)
        assert mean == pytest.approx(each.gain, abs=0.01)
        assert deviation < 0.01
    deviations = [expected(surrogate, here, config(2, rows))[1] for rows in (1, 2, 4, 8)]
    assert deviations == sorted(deviations)
    assert deviations[-1] > 5 * deviations[0]
    assert expected(surrogate, here, config(2, 2))[0] > expected(surrogate, here, config(1, 2))[0]


def test_a_neighbouring_bucket_informs_and_a_far_one_less() -> None:
    known = [timing(bucket, config(1), 0.0) for bucket in BUCKETS]
    known.append(timing(BUCKETS[0], config(8), 0.5))
    surrogate = Surrogate(TUNABLES, known)
    means = [expected(surrogate, bucket, config(8))[0] for bucket in BUCKETS]
    assert means == sorted(means, reverse=True)
    assert means[0] > 2 * means[2] > 0


def test_what_was_timed_against_an_earlier_base_counts_against_the_present_one() -> None:
    """The new base is the earlier winner: what was 0.3 faster than the old one is 0.1 slower than the new."""
    here = BUCKETS[0]
    old = [(config(1), 0.0), (config(4), 0.4), (config(8), 0.3), (config(2), 0.2)]
    known = [timing(here, of, gain, "old") for of, gain in old] + [timing(here, config(4), 0.0, "new")]
    surrogate = Surrogate(TUNABLES, known)
    assert expected(surrogate, here, config(8), "new")[0] == pytest.approx(-0.1, abs=0.01)
    assert expected(surrogate, here, config(1), "new")[0] == pytest.approx(-0.4, abs=0.01)


def test_values_without_an_order_are_all_as_far_from_each_other() -> None:
    tunables: Tunables = {"variant": ("a", "b", "c"), "flag": (False, True)}
    here = BUCKETS[0]
    surrogate = Surrogate(tunables, [timing(here, {"variant": "a", "flag": False}, 0.0)])
    found = [expected(surrogate, here, {"variant": v, "flag": False})[1] for v in ("b", "c")]
    assert found[0] == pytest.approx(found[1])
    assert expected(surrogate, here, {"variant": "a", "flag": True})[1] == pytest.approx(found[0])


def test_imagining_is_conditioning_on_what_is_expected() -> None:
    here, there = BUCKETS[:2]
    known = [timing(here, config(1), 0.0), timing(here, config(4), 0.3), timing(there, config(1), 0.0)]
    imagining = Surrogate(TUNABLES, known)
    mean, before = expected(imagining, there, config(4))
    imagining.imagine(there, config(4), "base")
    assert expected(imagining, there, config(4))[0] == pytest.approx(mean, abs=1e-6)
    assert expected(imagining, there, config(4))[1] < before / 5
    for bucket in (here, there):
        for of in (config(8), config(2, 4, "stream")):
            plain, after = (expected(s, bucket, of) for s in (Surrogate(TUNABLES, known), imagining))
            assert after[0] == pytest.approx(plain[0], abs=1e-6), "an expectation that came true is no news"
            assert after[1] <= plain[1] + 1e-9


def test_an_interval_is_an_error_of_measurement() -> None:
    ratio = Ratio(median=1.1, low=1.1 * math.exp(-0.0196), high=1.1 * math.exp(0.0196), n=6)
    found = Timing.of(BUCKETS[0], config(1), "base", ratio)
    assert found.gain == pytest.approx(math.log(1.1))
    assert found.error == pytest.approx(0.01)
    exact = Ratio(median=1.1, low=1.1, high=1.1, n=6)
    assert Timing.of(BUCKETS[0], config(1), "base", exact).error == LEAST_ERROR


def test_expected_improvement_by_hand() -> None:
    """At the best: deviation / sqrt(2 pi); certain: the gain, or nothing."""
    asked = Expectation(np.array([0.0, 0.3, -0.3]), np.array([0.1, 0.0, 0.0]))
    found = improvement(asked, 0.0)
    assert found[0] == pytest.approx(0.1 / math.sqrt(2 * math.pi))
    assert found[1] == pytest.approx(0.3)
    assert found[2] == pytest.approx(0.0, abs=1e-9)


def test_a_long_search_looks_at_the_latest_timings_and_stays_sound() -> None:
    rng = random.Random(0)
    known = [
        timing(
            rng.choice(BUCKETS), config(rng.choice((1, 2, 4, 8)), rng.choice((1, 2, 4, 8))), rng.gauss(0, 0.1)
        )
        for _ in range(MOST + 100)
    ]
    found = Surrogate(TUNABLES, known).expect(
        BUCKETS[0], [config(w, r) for w in (1, 8) for r in (1, 8)], "base"
    )
    assert np.isfinite(found.mean).all()
    assert (found.deviation >= 0).all()
    again = Surrogate(TUNABLES, known[100:]).expect(BUCKETS[0], [config(1)], "base")
    assert float(again.mean[0]) == pytest.approx(float(found.mean[0]))
