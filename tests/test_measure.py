"""Measuring: what an honest worker says is taken as it is, by the rules of a protocol."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from atrex.judge import Session
from atrex.measure import Protocol, Timing, measure_case, protocol_for
from atrex.records import Latency
from tests.timed import RULES, SLEEP_S, Honest, case, measure


class TestBaselines:
    """What a benchmark leaves out for code of our own, and how it stays within memory."""

    def test_without_hold_no_output_is_looked_at(self) -> None:
        session = Honest()
        measure(session, rules=replace(RULES, hold=False))
        assert set(session.log) == {"timed"}

    def test_sets_are_bounded_by_their_bytes(self) -> None:
        a_set = 2 * (40 * 64) * 2 + 64 * 2
        for most, expected in [(None, 2), (2 * a_set + 1, 2), (2 * a_set - 1, 1), (1, 1)]:
            session = Honest()
            measure(session, rules=replace(RULES, most_bytes=most, hold=False))
            assert len(session.request.seeds) == expected

    def test_fewer_sets_are_enough_where_nobody_is_suspected(self) -> None:
        session = Honest()
        measure(session, rules=replace(RULES, cache_bytes=1, min_sets=1, hold=False))
        assert len(session.request.seeds) == 1


class TestHonest:
    def test_a_latency_is_what_a_call_takes(self) -> None:
        (timing,) = measure(Honest())
        latency = timing.latency
        assert 1e6 * SLEEP_S <= latency.median_us < 4e6 * SLEEP_S
        assert latency.p10_us <= latency.median_us <= latency.p90_us
        assert (latency.method, latency.host_us) == ("wall", 5.0)
        assert RULES.min_rounds <= len(timing.rounds) <= RULES.max_rounds

    def test_two_are_compared_in_the_same_rounds(self) -> None:
        fast, slow = measure(Honest(), Honest(sleep=4 * SLEEP_S))
        assert len(fast.rounds) == len(slow.rounds)
        ratio = fast.ratio_to(slow)
        assert ratio.median > 2
        assert ratio.better

    def test_the_results_of_timed_calls_are_looked_at(self) -> None:
        session = Honest()
        measure(session)
        assert session.log.count("kept") == 5  # three passes by themselves, then once announced, once not
        assert session.log.count("spoiled") == 1
        assert set(session.log[-10:]) == {"timed"}  # familiar inputs against changed ones

    def test_telemetry_is_recorded(self) -> None:
        sessions = cast(list[Session], [Honest()])
        (timing,) = measure_case(sessions, case(), RULES, lambda: {"sm_mhz": 1980, "power_w": 333.0})
        assert (timing.latency.sm_mhz, timing.latency.power_w) == (1980, 333.0)

    def test_large_inputs_repeat_rows_and_are_checked_through_a_window(self) -> None:
        session = Honest(sleep=0)
        measure(session, of=case(token_count=3001, hidden_size=512))
        assert session.request.inputs.tile_rows is not None

    def test_inputs_rotate_through_three_caches(self) -> None:
        session = Honest(sleep=0)
        measure(session, rules=Protocol(3, 3, 1.0, 0.1, 1000.0, cache_bytes=1 << 16, max_sets=1000))
        bytes_of_a_call = 2 * (2 * 40 * 64 + 64)
        assert (len(session.sets) - 1) * bytes_of_a_call < 3 << 16 <= len(session.sets) * bytes_of_a_call
        assert len(set(session.request.seeds)) == len(session.sets)

    def test_nobody_can_foresee_the_seeds(self) -> None:
        sessions = [Honest(), Honest()]
        for session in sessions:
            random.seed(0)
            torch.manual_seed(0)
            measure(session)
        assert not set(sessions[0].request.seeds) & set(sessions[1].request.seeds)


class TestRules:
    def test_quick_looks_less_long(self) -> None:
        for device in ("cpu", "cuda"):
            quick, full = protocol_for(device, quick=True), protocol_for(device)
            assert quick.min_rounds <= full.min_rounds
            assert quick.case_seconds < full.case_seconds
            assert (quick.cache_bytes, quick.target) == (full.cache_bytes, full.target)

    def test_more_rounds_while_the_median_is_uncertain(self) -> None:
        class Noisy(Honest):
            turn = 0

            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                time.sleep(SLEEP_S * (self.turn // 6 % 4))
                self.turn += 1
                return super().call(inputs)

        rules = Protocol(3, 7, 0.001, 60.0, 3_000.0, cache_bytes=1 << 12, max_sets=2)
        (timing,) = measure(Noisy(), rules=rules)
        assert len(timing.rounds) == 7

    def test_the_budget_ends_it(self) -> None:
        rules = Protocol(3, 1000, 0.0, 0.05, 3_000.0, cache_bytes=1 << 12, max_sets=2)
        started = time.monotonic()
        measure(Honest(), rules=rules)
        assert time.monotonic() - started < 2

    def test_a_ratio_pairs_the_rounds_that_both_have(self) -> None:
        latency = Latency(median_us=1, p10_us=1, p90_us=1, n=1, method="wall")
        ratio = Timing(latency, (1.0, 2.0, 4.0)).ratio_to(Timing(latency, (3.0, 6.0)))
        assert (ratio.median, ratio.n) == (3.0, 2)
