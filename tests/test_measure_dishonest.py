"""Measuring: what a worker claims is held to the judge's clock, to results and to physics.

Each dishonest session changes one thing of the honest one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

import pytest
import torch
from torch import Tensor

from atrex import protocol
from atrex.candidate import Candidate
from atrex.judge import CandidateFault, Outcome
from atrex.records import FaultKind
from tests.timed import RULES, SLEEP_S, Honest, accused, case, measure


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
                self.rounds += len(samples) > 1
                shown = samples if self.rounds % 2 or len(samples) < 2 else [0.01] * len(samples)
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

        assert "passes came back with" in accused(Liar())

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

    @pytest.mark.parametrize(
        ("method", "said"), [("wall", "where none can be left out"), ("events", "seen before")]
    )
    def test_results_remembered_by_all_of_the_inputs(
        self, method: Literal["wall", "events"], said: str
    ) -> None:
        """Always right: a bare loop over the same inputs is what makes it fast."""

        class Liar(Honest):
            def prepare(self, request: protocol.Prepare) -> protocol.Reply:
                self.known = dict[bytes, Tensor]()
                return super().prepare(request).model_copy(update={"method": method})

            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                key = b"".join(tensor.view(torch.uint8).numpy().tobytes() for tensor in inputs.values())
                if key not in self.known:
                    self.known[key] = super().call(inputs)
                return self.known[key].clone()

        # It is accused whatever happens; of what, a neighbour on its core may change.
        rules = replace(RULES, round_us=3000.0)
        assert any(said in accused(Liar(sleep=5e-3), rules=rules) for _ in range(4))

    def test_all_passes_but_the_last_are_left_out(self) -> None:
        """They sleep as long as is claimed: a fifth of their time."""

        class Liar(Honest):
            def round(self, request: protocol.Round) -> protocol.Reply:
                if request.passes < 2:
                    return super().round(request)
                start = time.perf_counter()
                super().round(request.model_copy(update={"passes": 1}))
                time.sleep((request.passes - 1) * len(self.sets) * SLEEP_S / 5)
                took = (time.perf_counter() - start) * 1e6
                return self.claim([took / request.passes / len(self.sets)] * request.passes)

        assert "where none can be left out" in accused(Liar())

    @pytest.mark.parametrize("shape", [(39, 64), (40, 63), (40 * 64,)])
    def test_a_result_of_another_form(self, shape: tuple[int, ...]) -> None:
        class Liar(Honest):
            def call(self, inputs: dict[str, Tensor]) -> Tensor:
                return super().call(inputs).flatten()[: torch.Size(shape).numel()].reshape(shape)

        assert "a timed call left out is" in accused(Liar(), FaultKind.WRONG)

    def test_one_that_works_in_the_turns_of_others(self) -> None:
        """All the time, which only those who are timed should spend."""

        class Liar(Honest):
            def cpu_seconds(self) -> float:
                return time.monotonic()

        rival, liar = Honest(sleep=4 * SLEEP_S), Liar()
        with pytest.raises(CandidateFault, match="while others were timed") as raised:
            measure(rival, liar, rules=replace(RULES, case_seconds=1.0))
        assert raised.value.candidate == liar.candidate.id

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
