"""Measuring: what a worker claims is held to the judge's clock, to results and to physics.

The sessions here are real doubles: they run eager PyTorch in this process and time it, as a worker would.
The dishonest ones change one thing each.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from atrex import protocol
from atrex.candidate import Candidate
from atrex.inputs import apply_edit, build_inputs
from atrex.judge import CandidateFault, Outcome, Session
from atrex.measure import Protocol, Timing, measure_case, protocol_for
from atrex.problem import Problem, load_problem
from atrex.records import Case, FaultKind, Latency

CPU = torch.device("cpu")
RULES = Protocol(
    min_rounds=7, max_rounds=8, case_seconds=0.1, round_us=30_000.0, cache_bytes=1 << 12, max_sets=3
)
SLEEP_S = 0.5e-3
SMALL = {"token_count": 40, "hidden_size": 64}


def report(out: Tensor) -> protocol.CallReport:
    """As a worker describes one output."""
    dtype = str(out.dtype).removeprefix("torch.")
    described = protocol.TensorReport(
        name="out",
        python_type="torch.Tensor",
        dtype=dtype,
        shape=tuple(out.shape),
        device=out.device.type,
        nbytes=out.numel() * out.element_size(),
    )
    return protocol.CallReport(structure="tensor", outputs=(described,))


@dataclass
class Here:
    """The part of an engine that measuring looks at."""

    device: str = "cpu"
    torch_device: torch.device = CPU


@dataclass
class Honest:
    """Eager rms_norm in this process; a call lasts at least SLEEP_S."""

    candidate: Candidate = field(default_factory=lambda: Candidate("rms_norm", "torch", "pass"))
    problem: Problem = field(default_factory=lambda: load_problem("rms_norm"))
    engine: Here = field(default_factory=Here)
    sleep: float = SLEEP_S
    log: list[str] = field(default_factory=list)

    def prepare(self, request: protocol.Prepare) -> protocol.Reply:
        self.request = request
        recipes = (request.inputs.model_copy(update={"seed": seed}) for seed in request.seeds)
        self.sets = [build_inputs(self.problem, recipe, CPU)[0] for recipe in recipes]
        self.outputs: list[Tensor] = [torch.empty(0)] * len(self.sets)
        return self.reply(method="wall", host_us=5.0)

    def round(self, request: protocol.Round) -> protocol.Reply:
        self.log.append("spoiled" if request.spoil else "timed" if request.passes else "edited")
        for edit in request.edits:
            for inputs in self.sets:
                inputs[edit.input].copy_(apply_edit(inputs[edit.input], edit))
        samples = list[float]()
        for _ in range(request.passes):
            start = time.perf_counter()
            for index, inputs in enumerate(self.sets):
                self.outputs[index] = self.call(inputs)
            samples.append((time.perf_counter() - start) * 1e6 / len(self.sets))
        return self.claim(samples)

    def keep(self, wanted: protocol.Keep, nbytes: int) -> Outcome:
        self.log.append("kept")
        whole = self.outputs[wanted.index]
        assert wanted.sliced == ("out",)
        out = whole[wanted.start : wanted.stop].clone()
        assert nbytes >= out.numel() * out.element_size()
        return Outcome(report(whole), {"out": out}, {})

    def call(self, inputs: dict[str, Tensor]) -> Tensor:
        time.sleep(self.sleep)
        return self.problem.reference(self.request.inputs.shape, inputs)["out"]

    def claim(self, samples: list[float]) -> protocol.Reply:
        return self.reply(samples_us=tuple(samples))

    def reply(self, **fields: Any) -> protocol.Reply:
        return protocol.Reply(**fields)


def case(**dims: int) -> Case:
    return Case(operator="rms_norm", id="rms_norm-000", input=SMALL | dims, phase="decode", weight=1)


def measure(
    *sessions: Honest, of: Case | None = None, rules: Protocol = RULES, floor_us: float = 0
) -> list[Timing]:
    return measure_case(cast(list[Session], list(sessions)), of or case(), rules, floor_us=floor_us)


def accused(session: Honest, kind: FaultKind = FaultKind.EXITED, **options: Any) -> str:
    """What a dishonest session is told; it must be named."""
    with pytest.raises(CandidateFault) as caught:
        measure(session, **options)
    assert caught.value.candidate == session.candidate.id
    assert caught.value.kind is kind
    return caught.value.message


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
        assert session.log.count("kept") == 2  # once announced, once not
        assert "spoiled" in session.log[: session.log.index("kept")]
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


class TestDishonest:
    def test_a_third_of_the_time(self) -> None:
        class Liar(Honest):
            def claim(self, samples: list[float]) -> protocol.Reply:
                return self.reply(samples_us=tuple(sample / 3 for sample in samples))

        assert "judge's clock saw" in accused(Liar())

    def test_more_time_than_passed(self) -> None:
        """A slow rival makes the other look fast."""

        class Liar(Honest):
            def claim(self, samples: list[float]) -> protocol.Reply:
                return self.reply(samples_us=tuple(sample * 2 for sample in samples))

        assert "that passed" in accused(Liar())

    def test_one_sample_takes_the_time_of_all(self) -> None:
        class Liar(Honest):
            def claim(self, samples: list[float]) -> protocol.Reply:
                return self.reply(samples_us=(sum(samples), *[0.01] * (len(samples) - 1)))

        assert "judge's clock saw" in accused(Liar(), of=case(token_count=64))

    def test_most_rounds_take_no_time(self) -> None:
        """The median over all samples is honest; the medians that ratios are made of are not."""

        class Liar(Honest):
            rounds = 0

            def claim(self, samples: list[float]) -> protocol.Reply:
                self.rounds += 1
                shown = samples if self.rounds % 2 else [0.01]
                return self.reply(samples_us=tuple(shown))

        assert "judge's clock saw" in accused(Liar())

    def test_rounds_too_short_for_the_clock(self) -> None:
        class Liar(Honest):
            rounds = 0

            def claim(self, samples: list[float]) -> protocol.Reply:
                self.rounds += 1
                return self.reply(samples_us=tuple(s * (1e4 if self.rounds < 3 else 1e-2) for s in samples))

        accused(Liar())

    @pytest.mark.parametrize("samples", [(), (0.0,), (-5.0, -5.0)])
    def test_no_samples(self, samples: tuple[float, ...]) -> None:
        class Liar(Honest):
            def claim(self, _: list[float]) -> protocol.Reply:
                return self.reply(samples_us=samples)

        assert "without samples" in accused(Liar())

    def test_another_clock(self) -> None:
        """Claims of device time are held against the slope of the judge's own measurements."""

        class Liar(Honest):
            def prepare(self, request: protocol.Prepare) -> protocol.Reply:
                super().prepare(request)
                return self.reply(method="graph", host_us=1.0)

            def claim(self, samples: list[float]) -> protocol.Reply:
                return self.reply(samples_us=tuple(sample / 3 for sample in samples))

        assert "judge's clock saw" in accused(Liar())

    def test_a_wrong_result(self) -> None:
        class Liar(Honest):
            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                return super().call(inputs) * 1.02

        assert "a timed call gave" in accused(Liar(), FaultKind.WRONG)

    def test_right_only_where_outputs_were_overwritten(self) -> None:
        """It sees that it will be looked at, and computes then; else it has what it had."""

        class Liar(Honest):
            spoiled = True

            def round(self, request: protocol.Round) -> protocol.Reply:
                self.spoiled = request.spoil or (self.spoiled and not request.passes)
                return super().round(request)

            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                known = [out for out in self.outputs if out.numel()]
                if known and not self.spoiled and "kept" in self.log:
                    time.sleep(self.sleep)
                    return known[0]
                return super().call(inputs)

        assert "a timed call gave" in accused(Liar(), FaultKind.WRONG)

    def test_computed_when_it_is_fetched(self) -> None:
        class Liar(Honest):
            def keep(self, wanted: protocol.Keep, nbytes: int) -> Outcome:
                self.outputs[wanted.index] = self.call(self.sets[wanted.index])
                return super().keep(wanted, nbytes)

        assert "a timed call gave" in accused(Liar(), FaultKind.WRONG)

    def test_a_clock_that_runs_a_little_slowly(self) -> None:
        """Within what a core that wakes up late may cost a round, and not within what three cost more."""

        class Liar(Honest):
            def claim(self, samples: list[float]) -> protocol.Reply:
                return self.reply(samples_us=tuple(sample * 0.6 for sample in samples))

        assert "judge's clock" in accused(Liar(), rules=replace(RULES, round_us=20_000.0))

    def test_results_of_other_inputs(self) -> None:
        class Liar(Honest):
            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                return super().call(self.sets[0])

        def often() -> None:  # the set that is looked at is drawn: set 0 is right one time in three
            for _ in range(12):
                measure(Liar())

        with pytest.raises(CandidateFault, match="a timed call gave"):
            often()

    @pytest.mark.parametrize("rows", [40, 3001])
    def test_results_remembered_by_address(self, rows: int) -> None:
        """It looks at the first row before it trusts its memory; another row is what changes."""

        class Liar(Honest):
            def prepare(self, request: protocol.Prepare) -> protocol.Reply:
                self.kept = dict[int, tuple[Tensor, Tensor]]()
                return super().prepare(request)

            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                x = inputs["x"]
                first, out = self.kept.get(x.data_ptr(), (x[:0], x))
                if not torch.equal(first, x[:1]):
                    first, out = self.kept[x.data_ptr()] = (x[:1].clone(), super().call(inputs))
                time.sleep(self.sleep)
                return out.clone()

        def often() -> None:  # the row that changes is drawn: one time in 40 it is the one that is looked at
            for _ in range(4):
                measure(Liar(), of=case(token_count=rows, hidden_size=512))

        with pytest.raises(CandidateFault, match="a timed call gave"):
            often()

    def test_rows_of_large_outputs_that_repeat_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As on a GPU: all rows are drawn, and some of them are held against the oracle."""
        monkeypatch.setattr("atrex.kept._WHOLE", 1 << 12)

        class Large(Honest):
            def keep(self, wanted: protocol.Keep, nbytes: int) -> Outcome:
                kept = super().keep(wanted, nbytes)
                assert kept.outputs["out"].shape == (64, 64)
                return kept

        class Liar(Large):
            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                return super().call(self.sets[0])

        def often() -> None:
            for _ in range(12):
                measure(Liar(), of=large, rules=rules)

        large, rules = case(token_count=3000), replace(RULES, tiled=False, max_rounds=1, min_rounds=1)
        measure(Large(), of=large, rules=rules)
        with pytest.raises(CandidateFault, match="a timed call gave"):
            often()

    def test_results_remembered_by_all_of_the_inputs(self) -> None:
        """Always right: a bare loop over the same inputs is what makes it fast."""

        class Liar(Honest):
            def prepare(self, request: protocol.Prepare) -> protocol.Reply:
                self.known = dict[bytes, Tensor]()
                return super().prepare(request)

            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                key = b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in inputs.values())
                if key not in self.known:
                    self.known[key] = super().call(inputs)
                return self.known[key].clone()

        rules = replace(RULES, round_us=3000.0)
        assert "seen before" in accused(Liar(sleep=5e-3), rules=rules)

    @pytest.mark.parametrize("shape", [(39, 64), (40, 63), (40 * 64,)])
    def test_a_result_of_another_form(self, shape: tuple[int, ...]) -> None:
        class Liar(Honest):
            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                return super().call(inputs).flatten()[: torch.Size(shape).numel()].reshape(shape)

        assert "a timed call left out is" in accused(Liar(), FaultKind.WRONG)

    def test_no_result(self) -> None:
        class Liar(Honest):
            def keep(self, wanted: protocol.Keep, nbytes: int) -> Outcome:
                return Outcome(protocol.CallReport(structure="tensor", outputs=()), {}, {})

        assert "declared are ('out',)" in accused(Liar(), FaultKind.WRONG)

    def test_faster_than_physics(self) -> None:
        class OnGpu(Honest):
            def prepare(self, request: protocol.Prepare) -> protocol.Reply:
                super().prepare(request)
                return self.reply(method="graph", host_us=1.0)

        rules = replace(
            RULES, hold=False
        )  # a busy machine makes the judge's clock refuse honest claims first
        assert "physical floor" in accused(OnGpu(), rules=rules, floor_us=100e6 * SLEEP_S)
        measure(OnGpu(), rules=rules, floor_us=0.5e6 * SLEEP_S)
        measure(Honest(), floor_us=100e6 * SLEEP_S)  # a CPU's caches are faster than its memory

    def test_the_one_to_blame_is_named(self) -> None:
        class Liar(Honest):
            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                return super().call(inputs) * 2

        liar = Liar(candidate=Candidate("rms_norm", "torch", "lie"))
        with pytest.raises(CandidateFault) as caught:
            measure(Honest(), liar)
        assert caught.value.candidate == liar.candidate.id


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
