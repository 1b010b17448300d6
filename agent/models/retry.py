"""Trying again: only what may pass by itself, with growing jittered waits, and never beyond the deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from agent.models.failures import Failure, Kind
from agent.models.records import Limits

T = TypeVar("T")


@dataclass(frozen=True)
class Clock:
    """Time and waiting, so that tests need neither."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Surrender:
    """The failure that ended it, and why no further attempt was made."""

    failure: Failure
    attempts: int
    why: str


def persist(
    attempt: Callable[[float], T | Failure], limits: Limits, clock: Clock, rng: random.Random
) -> tuple[T, int] | Surrender:
    """What `attempt` brings, and how many it took. It is given the seconds left and raises nothing."""
    deadline = clock.now() + limits.deadline_s
    for number in range(1, limits.attempts + 1):
        outcome = attempt(deadline - clock.now())
        if not isinstance(outcome, Failure):
            return outcome, number
        if not outcome.temporary:
            why = f"the deadline is {limits.deadline_s:g} s" if outcome.kind is Kind.DEADLINE else ""
            return Surrender(outcome, number, why)
        wait = wait_before(number + 1, outcome, limits, rng)
        if number == limits.attempts:
            return Surrender(outcome, number, f"gave up after {number} attempts")
        if clock.now() + wait >= deadline:
            why = f"the next attempt, in {wait:.0f} s, is past the deadline of {limits.deadline_s:g} s"
            return Surrender(outcome, number, why)
        clock.sleep(wait)
    raise AssertionError("unreachable: there is at least one attempt")


def wait_before(attempt: int, failure: Failure, limits: Limits, rng: random.Random) -> float:
    """Seconds before the given attempt (2, 3, …): at least what the server asked for."""
    # 64 doublings are more than any cap; a float would overflow at a thousand.
    step = min(limits.longest_wait_s, limits.first_wait_s * 2.0 ** min(attempt - 2, 64))
    return max(step * rng.uniform(0.5, 1.0), failure.retry_after_s or 0.0)
