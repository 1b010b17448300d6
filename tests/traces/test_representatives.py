"""Observed cases, the few that stand for them, and the workload file that they make."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from math import fsum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atrex.errors import UsageError
from atrex.records import Phase
from tests.traces.made import Made, Part, made, norm
from traces.applications import ApplicationSpec, Fleet, assign
from traces.derive import derive, provenance, without_cases
from traces.placed import PlacedPhase
from traces.representatives import Caseless, Observed, Reduction, Timing, counts, observe, reduce
from traces.weights import scale, weigh
from traces.workload import Workload, load_workload, write_workload

GEMM = Part("dense_gemm", 60.0)
DAY = date(2026, 11, 30)


def seen(
    tokens: int, weight: float, phase: Phase = "decode", operator: str = "rms_norm", **more: Any
) -> Observed:
    timing = Timing(weight=weight, device_us=weight, calls=1)
    given_input = {"token_count": tokens, "hidden_size": 512, **more}
    return Observed(operator, phase, {"eps": 1e-6}, given_input, {"H200": timing}, ("a",))


def observed(
    pairs: Sequence[Made], *specs: ApplicationSpec
) -> tuple[tuple[Observed, ...], tuple[Caseless, ...]]:
    fleet = assign([profile for profile, _ in pairs], specs)
    return observe([one for _, placed in pairs for one in placed], scale(fleet), fleet)


def worked(pairs: Sequence[Made], *specs: ApplicationSpec, keep: float = 0.95) -> tuple[Fleet, Workload]:
    fleet = assign([profile for profile, _ in pairs], specs)
    placed = [one for _, own in pairs for one in own]
    cases, _ = observe(placed, scale(fleet), fleet)
    said = provenance(fleet, rules="0" * 64, keep=keep, seed=0, version="1", day=DAY)
    return fleet, derive(weigh(fleet, placed), reduce(cases, keep), name="mine", provenance=said)


class TestObserve:
    def test_cases_and_time_without_one_are_all_of_an_operator(self) -> None:
        pairs = [
            made("x", [norm(10, 8), norm(20, 8), norm(5, 9), Part("rms_norm", 15, why="no shapes"), GEMM])
        ]
        cases, without = observed(pairs)
        assert {case.input["token_count"]: round(case.weight, 9) for case in cases} == {
            8: round(30 / 110, 9),
            9: round(5 / 110, 9),
        }
        assert without == (Caseless("rms_norm", "no shapes", pytest.approx(15 / 110)),)

    def test_latency_is_device_time_over_calls(self) -> None:
        """Further kernels of a call have time and no calls; overlap does not shorten a call."""
        first, further = norm(10, 8, calls=4), norm(6, 8, calls=0)  # a case, though not the first kernel
        longer = Part("rms_norm", 1.0, "decode", first.input, first.init, calls=1, device_us=24.0)
        cases, _ = observed([made("x", [first, further, longer])])
        assert cases[0].timings["NVIDIA H200"].mean_us == pytest.approx((10 + 6 + 24) / 5)
        assert cases[0].calls == 5

    def test_hardware_is_kept_apart(self) -> None:
        pairs = [made("x", [norm(10, 8)]), made("y", [norm(30, 8)], hardware="NVIDIA H20")]
        cases, _ = observed(pairs)
        assert cases[0].mean_us == {"NVIDIA H200": 10, "NVIDIA H20": 30}

    def test_time_without_a_call_has_no_latency(self) -> None:
        cases, _ = observed([made("x", [norm(10, 8, calls=0)])])
        assert cases[0].mean_us == {}

    def test_an_unknown_phase_is_told_by_tokens_and_said_so(self) -> None:
        cases, _ = observed([made("x", [norm(10, 64, "unknown"), norm(30, 65, "unknown")])])
        assert {case.input["token_count"]: case.phase for case in cases} == {64: "decode", 65: "prefill"}
        assert fsum(case.by_count for case in cases) == pytest.approx(1)

    def test_an_operator_of_one_phase_needs_no_tokens(self) -> None:
        part = Part("paged_attention_decode", 10.0, input={"num_seqs": 500, "ctx_len": 64})
        cases, _ = observed([made("x", [part])])
        assert cases[0].phase == "decode"

    def test_what_tells_no_phase_is_no_case(self) -> None:
        part = Part("unified_attention", 10.0, input={"num_seqs": 3, "head_size": 64})
        cases, without = observed([made("x", [part])])
        assert cases == ()
        assert "no input counts its tokens" in without[0].why

    def test_known_and_told_phases_of_a_shape_are_one_case(self) -> None:
        cases, _ = observed([made("x", [norm(10, 8, "unknown"), norm(30, 8, "decode")])])
        assert len(cases) == 1
        assert cases[0].by_count == pytest.approx(0.25)


class TestCounts:
    def test_what_counts(self) -> None:
        assert counts({"token_count": 8, "hidden_size": 512, "dtype": "bf16"}) == {"token_count": 8}
        assert counts({"shape": [144, 2, 256], "block_size": 16}) == {"shape": 144}
        assert counts({"seq_lens": [[256, 3], [10, 1]]}) == {"sequences": 4, "sum of seq_lens": 778}
        assert counts({"seq_lens": [5, 6]}) == {"sequences": 2, "sum of seq_lens": 11}

    @pytest.mark.parametrize(
        ("first", "second", "together"),
        [
            ({"token_count": 64, "hidden_size": 8}, {"token_count": 127, "hidden_size": 8}, True),
            ({"token_count": 63, "hidden_size": 8}, {"token_count": 64, "hidden_size": 8}, False),
            ({"token_count": 64, "hidden_size": 8}, {"token_count": 64, "hidden_size": 9}, False),
            ({"shape": [4, 8, 128]}, {"shape": [5, 8, 128]}, True),
            ({"shape": [4, 8, 128]}, {"shape": [4, 9, 128]}, False),
            ({"seq_lens": [[100, 4]], "num_seqs": 4}, {"seq_lens": [[101, 4]], "num_seqs": 4}, True),
            ({"seq_lens": [[100, 4]]}, {"seq_lens": [[100, 9]]}, False),
            ({"token_count": 0}, {"token_count": 1}, False),
            ({"m": 9, "dtype": "bf16"}, {"m": 9, "dtype": "fp16"}, False),
        ],
    )  # fmt: skip
    def test_groups(self, first: dict[str, Any], second: dict[str, Any], together: bool) -> None:
        timing = {"H200": Timing(0.5, 1.0, 1)}
        cases = [Observed("x", "decode", {}, each, timing, ("a",)) for each in (first, second)]
        assert len(reduce(cases, keep=1.0)[0].representatives) == (1 if together else 2)


class TestReduce:
    def test_the_rare_are_dropped_and_the_rest_scaled(self) -> None:
        (found,) = reduce([seen(8, 0.60), seen(100, 0.37), seen(4000, 0.03)])
        assert [one.case.input["token_count"] for one in found.representatives] == [8, 100]
        assert found.kept == pytest.approx(0.97)
        assert fsum(one.scaled for one in found.representatives) == pytest.approx(1.0)
        assert found.cases == 3

    def test_the_medoid_stands_for_its_group(self) -> None:
        (found,) = reduce([seen(64, 0.1), seen(70, 0.1), seen(72, 0.3), seen(120, 0.2)])
        (one,) = found.representatives
        assert one.case.input["token_count"] == 72
        assert (one.members, one.weight) == (4, pytest.approx(0.7))

    def test_time_moves_the_medoid(self) -> None:
        (found,) = reduce([seen(64, 0.1), seen(70, 0.1), seen(72, 0.1), seen(120, 0.6)])
        assert found.representatives[0].case.input["token_count"] == 120

    def test_operators_and_phases_are_apart(self) -> None:
        found = reduce([seen(8, 0.9), seen(8, 0.001, "prefill"), seen(8, 0.01, operator="l2_norm")])
        assert [(one.operator, one.phase) for one in found] == [
            ("l2_norm", "decode"),
            ("rms_norm", "decode"),
            ("rms_norm", "prefill"),
        ]

    @pytest.mark.parametrize("keep", [0.0, -1.0, 1.01, float("nan")])
    def test_a_bad_share(self, keep: float) -> None:
        with pytest.raises(UsageError, match="--keep"):
            reduce([seen(8, 1.0)], keep)

    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(
            st.builds(
                seen,
                st.integers(0, 70000),
                st.floats(1e-9, 1.0),
                st.sampled_from(["prefill", "decode"]),
                st.sampled_from(["rms_norm", "l2_norm"]),
                hidden_size=st.sampled_from([512, 1024]),
            ),
            min_size=1,
            max_size=40,
            unique_by=lambda case: (case.operator, case.phase, case.identity),
        ),
        st.floats(0.01, 1.0),
        st.randoms(use_true_random=False),
    )
    def test_properties(self, cases: list[Observed], keep: float, random: Any) -> None:
        found = reduce(cases, keep)
        shuffled = list(cases)
        random.shuffle(shuffled)
        assert reduce(shuffled, keep) == found
        assert sum(one.cases for one in found) == len(cases)
        for one in found:
            self.holds(one, cases, keep)

    def holds(self, one: Reduction, cases: list[Observed], keep: float) -> None:
        own = [case for case in cases if (case.operator, case.phase) == (one.operator, one.phase)]
        assert one.weight == pytest.approx(fsum(case.weight for case in own))
        assert one.kept >= keep - 1e-9
        assert fsum(each.scaled for each in one.representatives) == pytest.approx(one.weight)
        held = [each.weight for each in one.representatives]
        assert held == sorted(held, reverse=True)
        assert fsum(held[:-1]) < keep * one.weight  # not one more than needed
        for each in one.representatives:
            assert each.case in own  # observed, never made up
            self.stands_within_two(each.case, own, each.members, each.weight)

    def stands_within_two(self, case: Observed, own: list[Observed], members: int, weight: float) -> None:
        tokens = counts(case.input)["token_count"]
        near = [
            other
            for other in own
            if other.input["hidden_size"] == case.input["hidden_size"]
            and counts(other.input)["token_count"].bit_length() == tokens.bit_length()
        ]
        assert (len(near), fsum(other.weight for other in near)) == (members, pytest.approx(weight))
        for other in near:
            assert counts(other.input)["token_count"] <= 2 * tokens <= 4 * counts(other.input)["token_count"]


class TestDerive:
    PAIRS = (
        made(
            "chat-0",
            [norm(40, 8, calls=4), norm(30, 999, "prefill"), Part("rms_norm", 10, why="no shapes"), GEMM],
        ),
        made("chat-1", [norm(20, 9, calls=1), Part("l2_norm", 5, why="graph replay"), GEMM]),
        made("search", [norm(10, 8), GEMM], hardware="NVIDIA H20"),
    )
    SPECS = (
        ApplicationSpec(name="chat", card_hours=3.0),
        ApplicationSpec(name="search", card_hours=1.0),
    )

    def test_the_file_reads_back_equal(self, tmp_path: Path) -> None:
        _, workload = worked(self.PAIRS, *self.SPECS)
        write_workload(workload, tmp_path / "mine.yaml")
        assert load_workload(tmp_path / "mine.yaml") == workload

    def test_what_it_holds(self) -> None:
        _, workload = worked(self.PAIRS, *self.SPECS)
        assert set(workload.operators) == {"rms_norm"}
        entry = workload.operators["rms_norm"]
        assert entry.weight == pytest.approx(
            0.75 * 100 / 225 + 0.25 * 10 / 70
        )  # time without a case included
        assert entry.phases == ("prefill", "decode")
        by_tokens = {case.input["token_count"]: case for case in entry.cases}
        assert set(by_tokens) == {8, 999}
        assert by_tokens[8].production_us == {"NVIDIA H200": 10, "NVIDIA H20": 10}
        assert by_tokens[8].call_count == 6  # of the group: the calls at 9 tokens too
        assert by_tokens[8].seen_in == "chat, search"
        assert [case.phase for case in workload.cases("rms_norm")] == ["prefill", "decode"]

    def test_cases_have_their_groups_share_of_the_weight(self) -> None:
        """Of chat's 225 us 40 + 20 at 8 tokens and 30 at 999; of search's 70 us 10 at 8; 10 without."""
        _, workload = worked(self.PAIRS, *self.SPECS)
        few, many = 0.75 * 60 / 225 + 0.25 * 10 / 70, 0.75 * 30 / 225
        entry = workload.operators["rms_norm"]
        shares = {case.input["token_count"]: case.share for case in entry.cases}
        expected = {8: few / (few + many), 999: many / (few + many)}
        assert shares == pytest.approx(expected, rel=1e-5)
        weights = {case.input["token_count"]: case.weight for case in workload.cases("rms_norm")}
        assert weights == pytest.approx(
            {key: entry.weight * part for key, part in expected.items()}, rel=1e-5
        )

    def test_what_is_dropped_in_a_phase_stays_in_it(self) -> None:
        parts = [norm(96, 8), norm(4, 16), norm(50, 999, "prefill")]
        _, workload = worked([made("x", parts)])
        assert [case.share for case in workload.operators["rms_norm"].cases] == [0.333333, 0.666667]

    def test_a_case_that_took_no_time_has_no_share(self) -> None:
        _, workload = worked([made("x", [norm(10, 8), norm(0, 999, "prefill")])])
        assert [case.share for case in workload.operators["rms_norm"].cases] == [1.0]

    def test_operators_without_a_case_are_named(self) -> None:
        fleet = assign([profile for profile, _ in self.PAIRS], self.SPECS)
        placed = [one for _, own in self.PAIRS for one in own]
        cases, _ = observe(placed, scale(fleet), fleet)
        assert without_cases(weigh(fleet, placed), reduce(cases)) == ("l2_norm",)

    def test_nothing_to_work_on(self) -> None:
        with pytest.raises(UsageError, match="no operator has a case"):
            worked([made("x", [Part("l2_norm", 5, why="graph replay"), GEMM])])

    def test_provenance(self) -> None:
        fleet, workload = worked(self.PAIRS, *self.SPECS)
        for profile in fleet.profiles:
            assert f"{profile.file} (sha256 {profile.digest})" in workload.provenance
        for part in ("card-hours: chat 3, search 1", "rules sha256 000", "2026-11-30", "keep 0.95, seed 0"):
            assert part in workload.provenance
        assert "every file counts the same" in worked(self.PAIRS)[1].provenance

    def test_a_phase_of_its_own(self) -> None:
        """Ten tokens of a prefill stay prefill, though the format would count them as decode."""
        _, workload = worked([made("x", [norm(10, 10, "prefill"), norm(10, 10, "decode")])])
        assert [case.phase for case in workload.cases("rms_norm")] == ["prefill", "decode"]
        _, alone = worked([made("x", [norm(10, 10, "prefill")])])
        assert [case.phase for case in alone.cases("rms_norm")] == ["prefill"]

    @pytest.mark.parametrize("file", ["a: b #{}\n.json", "'\"\\.json", "\u202eevil", "ünï.json", "- [x"])
    def test_hostile_file_names(self, tmp_path: Path, file: str) -> None:
        _, workload = worked([made(file, [norm(10, 8)])])
        write_workload(workload, tmp_path / "mine.yaml")
        assert load_workload(tmp_path / "mine.yaml") == workload
        assert file in workload.provenance


class TestCallsOfSeveralKernels:
    def further(self, us: float, phase: PlacedPhase = "decode") -> Part:
        return Part("rms_norm", us, phase, why="a further kernel of a call", calls=0)

    def test_they_belong_to_the_case_of_the_step(self) -> None:
        cases, without = observed(
            [made("x", [norm(10, 8, calls=5), self.further(15), self.further(5), GEMM])]
        )
        assert without == ()
        assert cases[0].mean_us == {"NVIDIA H200": 6.0}
        assert cases[0].weight == pytest.approx(30 / 90)
        assert cases[0].spread == 0

    def test_several_cases_share_them_in_proportion(self) -> None:
        cases, _ = observed([made("x", [norm(10, 8), norm(30, 9), self.further(20)])])
        assert {case.input["token_count"]: case.mean_us["NVIDIA H200"] for case in cases} == {8: 15, 9: 45}
        assert fsum(case.spread for case in cases) == pytest.approx(20 / 60)

    def test_other_steps_and_profiles_keep_theirs(self) -> None:
        pairs = [
            made("x", [norm(10, 8).within("a"), norm(10, 9).within("b"),
                       self.further(7).within("b")]),
            made("y", [norm(10, 10)]),
        ]  # fmt: skip
        cases, _ = observed(pairs)
        means = {case.input["token_count"]: case.mean_us["NVIDIA H200"] for case in cases}
        assert means == {8: 10, 9: 17, 10: 10}

    def test_without_a_first_kernel_the_reason_stays(self) -> None:
        cases, without = observed([made("x", [self.further(7, "prefill"), norm(10, 8)])])
        assert [one.why for one in without] == ["a further kernel of a call"]
        assert cases[0].mean_us == {"NVIDIA H200": 10}

    def test_a_first_kernel_without_a_case_takes_them_along(self) -> None:
        _, without = observed([made("x", [Part("rms_norm", 9, "decode", why="no shapes"), self.further(1)])])
        assert [(one.why, one.weight) for one in without] == [("no shapes", pytest.approx(1.0))]

    @settings(max_examples=60, deadline=None)
    @given(
        st.lists(st.sampled_from(["first", "other", "further", "unknown"]), min_size=1, max_size=8), st.data()
    )
    def test_no_time_is_lost(self, kinds: list[str], data: st.DataObject) -> None:
        made_of = {
            "first": lambda us: norm(us, 8),
            "other": lambda us: norm(us, 999, "prefill"),
            "further": self.further,
            "unknown": lambda us: Part("rms_norm", us, "decode", why="no shapes"),
        }
        parts = [made_of[kind](data.draw(st.floats(0.001, 1e6))) for kind in kinds]
        cases, without = observed([made("x", parts)])
        assert fsum([*(case.weight for case in cases), *(one.weight for one in without)]) == pytest.approx(1)

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def test_the_order_does_not_matter(self, data: st.DataObject) -> None:
        kinds = [
            norm(10, 8),
            norm(30, 9),
            norm(7, 900, "unknown"),
            self.further(20),
            self.further(3, "prefill"),
        ]
        parts = data.draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=8))
        pairs = [made("x", parts), made("y", parts[::-1])]
        fleet = assign([profile for profile, _ in pairs])
        placed = [one for _, own in pairs for one in own]
        shuffled = data.draw(st.permutations(placed))
        assert observe(shuffled, scale(fleet), fleet) == observe(placed, scale(fleet), fleet)
