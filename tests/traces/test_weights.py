"""Applications, weights and their intervals, and two workloads side by side."""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import fsum
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atrex.errors import UsageError
from tests.traces.made import Made, Part, made, norm
from traces.applications import ApplicationSpec, Fleet, assign, load_applications, parse_card_hours
from traces.compare import side_by_side, spearman, split_of
from traces.placed import UNPLACED
from traces.weights import Weights, scale, weigh
from traces.workload import OperatorWorkload, Workload, WorkloadCase, load_workload

GEMM, COPY = Part("dense_gemm", 60.0), Part("copy", 5.0)


def spec(name: str, hours: float, *files: str) -> ApplicationSpec:
    return ApplicationSpec(name=name, card_hours=hours, files=files)


def weighed(pairs: Sequence[Made], *specs: ApplicationSpec, **options: int) -> Weights:
    fleet = assign([profile for profile, _ in pairs], specs)
    return weigh(fleet, [one for _, placed in pairs for one in placed], **options)


def weight(found: Weights, target: str) -> float:
    return found.total(target).weight


class TestApplications:
    def test_flags(self) -> None:
        assert parse_card_hours(["chat=1200", "a=b=0.5"]) == (spec("chat", 1200), spec("a=b", 0.5))

    @pytest.mark.parametrize(
        "option", ["chat", "=5", "chat=", "chat=many", "chat=-1", "chat=0", "chat=nan", "chat=inf"]
    )
    def test_bad_flags(self, option: str) -> None:
        with pytest.raises(UsageError, match="--card-hours") as caught:
            parse_card_hours([option])
        assert "\n" not in str(caught.value)

    def test_a_name_twice(self) -> None:
        with pytest.raises(UsageError, match="'chat' is given twice"):
            parse_card_hours(["chat=1", "chat=2"])

    def test_yaml_and_csv_say_the_same(self, tmp_path: Path) -> None:
        yaml, csv = tmp_path / "a.yaml", tmp_path / "a.csv"
        yaml.write_text(
            "applications:\n"
            "  - {name: chat, card_hours: 12, files: ['llama-*', 'x?']}\n"
            "  - {name: b, card_hours: 3.5}\n"
        )
        csv.write_text("name,card_hours,files\nchat,12,llama-*;x?\nb,3.5,\n")
        assert (
            load_applications(yaml)
            == load_applications(csv)
            == (spec("chat", 12, "llama-*", "x?"), spec("b", 3.5))
        )

    @pytest.mark.parametrize(
        ("name", "text", "said"),
        [
            ("a.csv", "name,hours\nchat,12\n", "no column card_hours"),
            ("a.csv", "name,card_hours,color\nchat,12,red\n", "unknown column 'color'"),
            ("a.csv", "name,card_hours\nchat,12,9\n", "line 2"),
            ("a.csv", "name,card_hours\nchat\n", "line 2"),
            ("a.csv", "name,card_hours\nchat,lots\n", "applications.0.card_hours"),
            ("a.csv", "name,card_hours\n", "applications"),
            ("a.csv", "", "no column name"),
            ("a.yaml", "applications: []\n", "field applications"),
            ("a.yaml", "applications:\n  - {name: chat}\n", "field applications.0.card_hours"),
            ("a.yaml", "chat: 12\n", "field applications"),
            ("a.yaml", "[", "not YAML"),
        ],
    )  # fmt: skip
    def test_bad_files(self, tmp_path: Path, name: str, text: str, said: str) -> None:
        (tmp_path / name).write_text(text)
        with pytest.raises(UsageError, match=said) as caught:
            load_applications(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("name", ["none.yaml", "none.csv"])
    def test_an_absent_file(self, tmp_path: Path, name: str) -> None:
        with pytest.raises(UsageError, match="cannot be read"):
            load_applications(tmp_path / name)

    def test_the_longer_name_owns_a_file(self) -> None:
        profiles = [made("llama-1.json", [GEMM])[0], made("llama-moe-1.json", [GEMM])[0]]
        fleet = assign(profiles, [spec("llama", 1), spec("llama-moe", 2)])
        owned = {one.name: [profile.file for profile in one.profiles] for one in fleet.applications}
        assert owned == {"llama": ["llama-1.json"], "llama-moe": ["llama-moe-1.json"]}

    def test_patterns_go_before_names(self) -> None:
        fleet = assign([made("llama-1.json", [GEMM])[0]], [spec("chat", 1, "*-1.json")])
        assert fleet.applications[0].name == "chat"

    def test_strays_and_empty_applications_are_both_named(self) -> None:
        with pytest.raises(
            UsageError, match=r"profiles of no application: y\.json; .*without a profile: chat"
        ):
            assign([made("x.json", [GEMM])[0], made("y.json", [GEMM])[0]], [spec("x", 1), spec("chat", 2)])

    def test_two_claims(self) -> None:
        with pytest.raises(UsageError, match=r"x\.json belongs to both a and b"):
            assign([made("x.json", [GEMM])[0]], [spec("a", 1, "x*"), spec("b", 1, "*.json")])

    def test_files_without_device_time(self) -> None:
        idle, busy = made("idle.json", []), made("busy.json", [GEMM])
        assert assign([idle[0], busy[0]]).idle == ("idle.json",)
        with pytest.raises(UsageError, match="no profile shows device time"):
            assign([idle[0]])
        with pytest.raises(UsageError, match="application idle: none of its profiles"):
            assign([idle[0], busy[0]], [spec("idle", 1), spec("busy", 1)])


class TestAccounting:
    def test_a_worked_example(self) -> None:
        # chat: rms_norm 40 of 100 in two files; search: 10 of 50. Card-hours 3:1.
        pairs = [
            made("chat-0", [norm(10, 8), GEMM]),
            made("chat-1", [norm(30, 8)]),
            made("search", [norm(10, 8), Part("dense_gemm", 40.0)]),
        ]
        found = weighed(pairs, spec("chat", 300), spec("search", 100))
        assert weight(found, "rms_norm") == pytest.approx(0.75 * 0.4 + 0.25 * 0.2)
        assert found.total("rms_norm").shares == pytest.approx({"chat": 0.4, "search": 0.2})
        assert found.coverage.weight == weight(found, "rms_norm")
        assert found.total("rms_norm").of_ours == pytest.approx(1)

    def test_phases_are_apart(self) -> None:
        found = weighed([made("x", [norm(10, 8, "decode"), norm(30, 999, "prefill"), GEMM])])
        rows = {(row.target, row.phase): row.weight for row in found.rows}
        assert rows == pytest.approx(
            {("rms_norm", "decode"): 0.1, ("rms_norm", "prefill"): 0.3, ("dense_gemm", "unknown"): 0.6}
        )

    def test_overlap_counts_once(self) -> None:
        overlapped = Part("rms_norm", 10.0, "decode", {"token_count": 1, "hidden_size": 8}, device_us=20.0)
        found = weighed([made("x", [overlapped, Part("copy", 10.0, device_us=20.0)])])
        assert weight(found, "rms_norm") == 0.5

    def test_without_card_hours_files_count_the_same(self) -> None:
        found = weighed([made("short", [norm(1, 8), Part("copy", 1.0)]), made("long", [Part("copy", 1e6)])])
        assert weight(found, "rms_norm") == pytest.approx(0.25)
        assert not found.stated

    def test_with_card_hours_long_profiles_say_more(self) -> None:
        pairs = [made("a-0", [norm(1, 8), Part("copy", 1.0)]), made("a-1", [Part("copy", 98.0)])]
        assert weight(weighed(pairs, spec("a", 1)), "rms_norm") == pytest.approx(0.01)

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def test_everything_is_accounted_for(self, data: st.DataObject) -> None:
        pairs = data.draw(fleets())
        hours = data.draw(st.lists(st.floats(0.01, 1e6), min_size=3, max_size=3))
        specs = [spec(f"app{n}", hours[n]) for n in range(3)]
        for found in (weighed(pairs, *specs, resamples=20), weighed(pairs, resamples=20)):
            outside = fsum(row.weight for row in found.rows if not row.ours)
            assert fsum(row.weight for row in found.rows) == pytest.approx(1, abs=1e-12)
            assert fsum(row.weight for row in found.totals) == pytest.approx(1, abs=1e-12)
            assert found.coverage.weight + outside == pytest.approx(1, abs=1e-12)
            shared = [row.of_ours for row in found.rows if row.of_ours is not None]
            assert fsum(shared) == pytest.approx(1 if found.coverage.weight else 0, abs=1e-12)
            for app in found.applications:
                assert fsum(row.shares[app.name] for row in found.rows) == pytest.approx(1, abs=1e-12)

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def test_the_order_does_not_matter(self, data: st.DataObject) -> None:
        pairs = data.draw(fleets())
        specs = [spec(f"app{n}", 1.0 + n) for n in range(3)]
        placed = [one for _, own in pairs for one in own]
        shuffled = data.draw(st.permutations(placed))
        profiles = data.draw(st.permutations([profile for profile, _ in pairs] * 2))
        first = weigh(assign([profile for profile, _ in pairs], specs), placed, resamples=50)
        assert weigh(assign(profiles, specs[::-1]), shuffled, resamples=50) == first

    @settings(max_examples=40, deadline=None)
    @given(st.data())
    def test_card_hours_are_linear(self, data: st.DataObject) -> None:
        """Weights hang on ratios of card-hours only, and mix applications in proportion to them."""
        pairs = data.draw(fleets())
        hours = data.draw(st.lists(st.floats(0.1, 1e3), min_size=3, max_size=3))
        factor = data.draw(st.floats(0.1, 1e3))
        specs = [spec(f"app{n}", each) for n, each in enumerate(hours)]
        first = weighed(pairs, *specs, resamples=1)
        again = weighed(pairs, *(spec(f"app{n}", each * factor) for n, each in enumerate(hours)), resamples=1)
        for row in first.totals:
            assert weight(again, row.target) == pytest.approx(row.weight, rel=1e-9, abs=1e-15)
            mixed = fsum(row.shares[f"app{n}"] * each for n, each in enumerate(hours)) / fsum(hours)
            assert row.weight == pytest.approx(mixed, rel=1e-9, abs=1e-15)

    def test_weights_are_sums_of_scaled_time(self) -> None:
        pairs = [made("a-0", [norm(10, 8), GEMM]), made("a-1", [norm(3, 9)]), made("b", [norm(7, 8), COPY])]
        for specs in ([], [spec("a", 2), spec("b", 5)]):
            fleet = assign([profile for profile, _ in pairs], specs)
            placed = [one for _, own in pairs for one in own]
            scales = scale(fleet)
            by_hand = fsum(
                one.entry.busy_us * scales[one.digest] for one in placed if one.target == "rms_norm"
            )
            assert weight(weigh(fleet, placed), "rms_norm") == pytest.approx(by_hand, rel=1e-12)


@st.composite
def fleets(draw: st.DrawFn) -> list[Made]:
    """One to four profiles of each of three applications."""
    times = st.floats(0.001, 1e7)
    parts = st.lists(
        st.one_of(
            st.builds(norm, times, st.integers(1, 9999), st.sampled_from(["prefill", "decode", "unknown"])),
            st.builds(Part, st.sampled_from(["dense_gemm", "copy", UNPLACED]), times),
            st.builds(lambda us: Part("silu_and_mul", us, why="no shapes"), times),
        ),
        min_size=1,
        max_size=6,
    )
    return [
        made(f"app{app}-{number}", draw(parts))
        for app in range(3)
        for number in range(draw(st.integers(1, 4)))
    ]


class TestIntervals:
    def fleet(self, shares: Sequence[float], name: str = "a") -> list[Made]:
        return [
            made(f"{name}-{number}", [norm(100 * share, 8), Part("dense_gemm", 100 * (1 - share))])
            for number, share in enumerate(shares)
        ]

    def test_one_profile_has_none(self) -> None:
        total = weighed(self.fleet([0.3]), spec("a", 1)).total("rms_norm")
        assert (total.low, total.high, total.profiles, total.thin) == (None, None, 1, "one profile")

    def test_two_profiles_span_both(self) -> None:
        total = weighed(self.fleet([0.2, 0.4]), spec("a", 1)).total("rms_norm")
        assert (total.low, total.high) == pytest.approx((0.2, 0.4))
        assert (total.profiles, total.thin) == (2, "two profiles")

    def test_three_are_not_thin(self) -> None:
        assert weighed(self.fleet([0.2, 0.3, 0.4]), spec("a", 1)).total("rms_norm").thin == ""

    def test_an_application_with_one_profile_hides_its_spread(self) -> None:
        pairs = [*self.fleet([0.1, 0.2, 0.3]), *self.fleet([0.3], "b")]
        total = weighed(pairs, spec("a", 1), spec("b", 1)).total("rms_norm")
        assert (total.low, total.thin, total.profiles) == (None, "b: one profile", 4)

    def test_seen_in_one_of_many(self) -> None:
        pairs = [*self.fleet([0.0] * 4), made("a-x", [Part("silu_and_mul", 5.0, why="no shapes")])]
        total = weighed(pairs, spec("a", 1)).total("silu_and_mul")
        assert (total.profiles, total.low, total.thin) == (1, None, "one profile")

    def test_the_seed_decides(self) -> None:
        pairs = self.fleet([0.1, 0.25, 0.3, 0.5, 0.9])
        runs = [weighed(pairs, spec("a", 1), seed=seed, resamples=99).total("rms_norm") for seed in (1, 1, 2)]
        assert runs[0] == runs[1]
        assert (runs[0].low, runs[0].high) != (runs[2].low, runs[2].high)

    def test_they_cover_the_truth(self) -> None:
        """Shares drawn around 0.3: about 95 % of the intervals over 15 profiles hold it."""
        random_ = np.random.default_rng(0)
        trials, hits = 200, 0
        for _ in range(trials):
            shares = random_.beta(6, 14, size=15)
            total = weighed(self.fleet([float(each) for each in shares]), spec("a", 1), resamples=300).total(
                "rms_norm"
            )
            assert total.low is not None
            assert total.high is not None
            hits += total.low <= 0.3 <= total.high
        assert 0.88 <= hits / trials <= 0.99

    def test_more_profiles_are_surer(self) -> None:
        generator = random.Random(3)
        widths = []
        for count in (8, 128):
            shares = [generator.betavariate(6, 14) for _ in range(count)]
            total = weighed(self.fleet(shares), spec("a", 1)).total("rms_norm")
            widths.append((total.high or 0) - (total.low or 0))
        assert widths[1] < widths[0] / 2


class TestSideBySide:
    def workload(self, name: str, **weights: float) -> Workload:
        case = WorkloadCase(shape=0, input={"token_count": 8, "hidden_size": 8})
        return Workload(
            name=name,
            provenance="a test",
            operators={
                operator: OperatorWorkload(weight=each, phases=("decode",), cases=(case,))
                for operator, each in weights.items()
            },
        )

    def test_a_workload_beside_itself(self) -> None:
        published = load_workload()
        found = side_by_side(published, published)
        assert found.rank_correlation == pytest.approx(1)
        assert all(
            pair.ratio == 1 and pair.common == pair.first_cases == pair.second_cases
            for pair in found.operators
        )
        assert fsum(pair.weights[0] for pair in found.operators) == pytest.approx(1)
        assert len(found.operators) == 30

    def test_ratio_and_absence(self) -> None:
        found = side_by_side(self.workload("x", a=1, b=3), self.workload("y", a=4, c=4))
        pairs = {pair.operator: pair for pair in found.operators}
        assert pairs["a"].ratio == pytest.approx(0.5)
        assert pairs["b"].ratio is None
        assert (pairs["c"].ratio, pairs["c"].common, pairs["a"].common) == (0, 0, 1)

    def test_phases_of_the_published_workload(self) -> None:
        split = split_of(load_workload())
        assert fsum(split["rms_norm"].values()) == pytest.approx(0.027508)
        assert set(split["rms_norm"]) == {"prefill", "decode"}
        assert set(split["topk_filter"]) == {"decode"}

    @pytest.mark.parametrize(
        ("first", "second", "value"),
        [
            ([1, 2, 3], [10, 20, 30], 1.0),
            ([1, 2, 3], [3, 2, 1], -1.0),
            ([1, 2, 3, 4], [1, 3, 2, 4], 0.8),
            ([1, 2, 2, 4], [1, 2, 3, 4], 0.9486832980505138),  # scipy.stats.spearmanr
            ([1, 2], [1, 2], None),
            ([1, 1, 1], [1, 2, 3], None),
        ],
    )  # fmt: skip
    def test_spearman(self, first: list[float], second: list[float], value: float | None) -> None:
        assert spearman(first, second) == (value if value is None else pytest.approx(value))


def test_a_fleet_knows_its_profiles_once() -> None:
    profile, _ = made("x", [GEMM])
    fleet: Fleet = assign([profile, profile])
    assert fleet.profiles == (profile,)
    assert fleet.card_hours == 1
