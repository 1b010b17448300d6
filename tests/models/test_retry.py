"""The waits between attempts, without a model and without waiting."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models.failures import TEMPORARY, Failure, Kind, of_status, of_words, retry_after
from agent.models.records import Limits
from agent.models.retry import Surrender, persist, wait_before
from tests.models.conftest import FakeClock

LIMITS = Limits(attempts=6, first_wait_s=1, longest_wait_s=10, deadline_s=100)


@settings(max_examples=50, deadline=None)
@given(attempt=st.integers(2, 5000), seed=st.integers(), asked=st.none() | st.floats(0, 1e9))
def test_a_wait_is_jittered_capped_and_at_least_what_was_asked(
    attempt: int, seed: int, asked: float | None
) -> None:
    wait = wait_before(attempt, Failure(Kind.BUSY, retry_after_s=asked), LIMITS, random.Random(seed))
    step = min(10.0, 2.0 ** min(attempt - 2, 10))
    assert max(step / 2, asked or 0) <= wait <= max(step, asked or 0)


def test_the_same_seed_waits_the_same() -> None:
    def waits(seed: int) -> list[float]:
        clock = FakeClock()
        persist(lambda left: Failure(Kind.BUSY), LIMITS, clock.clock(), random.Random(seed))
        return clock.slept

    assert waits(1) == waits(1) != waits(2)
    assert len(waits(1)) == 5


def test_every_attempt_is_given_what_is_left() -> None:
    clock, left = FakeClock(), []

    def attempt(seconds: float) -> Failure:
        left.append(seconds)
        clock.time += 30
        return Failure(Kind.TIMEOUT)

    end = persist(attempt, LIMITS, clock.clock(), random.Random(0))
    assert isinstance(end, Surrender)
    assert left[0] == 100 > left[1] > left[2] > left[3] > 0
    assert clock.time - 1000 <= 100 + 30
    assert "past the deadline" in end.why


@pytest.mark.parametrize("kind", list(Kind))
def test_only_the_listed_kinds_are_tried_again(kind: Kind) -> None:
    clock = FakeClock()
    end = persist(lambda left: Failure(kind), LIMITS, clock.clock(), random.Random(0))
    assert isinstance(end, Surrender)
    assert (end.attempts, bool(clock.slept)) == ((6, True) if kind in TEMPORARY else (1, False))


def test_of_all_statuses_only_these_may_pass() -> None:
    temporary = {status for status in range(300, 700) if of_status(status, ()) in TEMPORARY}
    assert temporary == {408, 429, *range(500, 600)}


def test_money_outweighs_the_word_beside_it() -> None:
    assert of_words(("rate_limit_error", "enforced_spend_limit_reached")) is Kind.MONEY
    assert of_words(("429",)) is Kind.BUSY
    assert of_words(("503", "x")) is Kind.BROKEN
    assert of_words(("x", "y")) is None


def test_retry_after_as_a_date() -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert retry_after({"retry-after": later}) == pytest.approx(90, abs=3)
    assert retry_after({"retry-after": "Mon, 01 Jan 2001 00:00:00 GMT"}) == 0.0
    assert retry_after({"retry-after": "nan"}) is None
    assert retry_after({}) is None
