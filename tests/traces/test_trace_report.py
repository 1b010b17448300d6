"""The report of traces: its sums, its bounds, its notes, and its three forms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from io import StringIO
from math import fsum
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from atrex.commands.trace_files import named
from atrex.commands.trace_problems import identify, rooflines
from atrex.errors import UsageError
from atrex.records import Bound, InitValue
from atrex.report.trace_html import render_trace_html
from atrex.report.trace_terminal import (
    render_overview,
    render_profiles,
    render_side_by_side,
    render_trace_report,
    render_weights,
)
from atrex.report.trace_text import hours, interval, share
from tests.traces.made import Made, Part, made, norm
from traces.applications import ApplicationSpec, assign
from traces.compare import side_by_side
from traces.overview import overview
from traces.placed import UNPLACED
from traces.profile import Entry
from traces.report import TraceReport, build
from traces.representatives import observe, reduce
from traces.weights import scale, weigh
from traces.workload import load_workload

EVIL = "<script>alert(1)</script>[red]\x1b[31m\u202e'\"&"
CHAT, SEARCH = ApplicationSpec(name="chat", card_hours=300), ApplicationSpec(name="search", card_hours=100)
PAIRS = (
    made("chat-0", [norm(40, 8, calls=4), norm(30, 999, "prefill"), Part("dense_gemm", 30)], idle_us=100),
    made("chat-1", [norm(50, 8, calls=5), Part("l2_norm", 20, why="graph replay"), Part(UNPLACED, 30)]),
    made("search", [norm(10, 8), Part(UNPLACED, 90)], hardware="", complaints=("3 events without a time",)),
)


def suggestion(entry: Entry) -> str:
    return f"- {{kernel: {entry.kernel}, target: other}}"


def half(
    hardware: str, operator: str, init: Mapping[str, InitValue], input: Mapping[str, Any]
) -> Bound | None:
    """Every call could take 5 µs, and 4 by the vendor."""
    return Bound(sol_us=4.0, attainable_us=5.0, limiter="memory")


def vendor(
    hardware: str, operator: str, init: Mapping[str, InitValue], input: Mapping[str, Any]
) -> Bound | None:
    return Bound(sol_us=4.0, attainable_us=None, limiter="memory")


def report(pairs: Sequence[Made] = PAIRS, *specs: ApplicationSpec, roofline: Any = half) -> TraceReport:
    fleet = assign([profile for profile, _ in pairs], specs)
    placed = [one for _, own in pairs for one in own]
    cases, without = observe(placed, scale(fleet), fleet)
    return build(fleet, placed, weigh(fleet, placed), cases, without, roofline=roofline, suggest=suggestion)


def text(renderable: Any) -> str:
    out = StringIO()
    Console(file=out, width=160).print(renderable)
    return out.getvalue()


class TestSums:
    def test_a_worked_example(self) -> None:
        found = report(PAIRS, CHAT, SEARCH)
        rows = {row.operator: row for row in found.operators}
        # decode in chat: 90 of 200 µs of 300 hours, 10 µs a call, 5 µs of them recoverable
        # prefill in chat: 30 of 200, 30 µs a call, 25 recoverable; search names no hardware: no bound
        expected = 300 * 90 / 200 * 0.5 + 300 * 30 / 200 * 25 / 30
        assert rows["rms_norm"].recoverable == pytest.approx(expected)
        assert rows["rms_norm"].card_hours == pytest.approx(300 * 120 / 200 + 100 * 10 / 100)
        assert rows["rms_norm"].bounded == pytest.approx(300 * 120 / 200)
        assert (rows["l2_norm"].recoverable, rows["l2_norm"].bounded) == (0, 0)
        assert rows["l2_norm"].card_hours == pytest.approx(300 * 20 / 200)

    def test_the_most_recoverable_comes_first(self) -> None:
        found = report(PAIRS, CHAT, SEARCH)
        assert [row.operator for row in found.operators] == ["rms_norm", "l2_norm"]
        gains = [gap.recoverable or 0.0 for gap in found.cases]
        assert gains == sorted(gains, reverse=True)

    def test_faster_than_its_bound_recovers_nothing(self) -> None:
        found = report([made("x", [norm(4, 8), norm(50, 9)])])
        by_tokens = {gap.input["token_count"]: gap.recoverable for gap in found.cases}
        assert by_tokens[8] == 0
        assert by_tokens[9] == pytest.approx(50 / 54 * 0.9)

    def test_all_time_is_in_a_case_or_without_one_or_outside(self) -> None:
        found = report(PAIRS, CHAT, SEARCH)
        cases = fsum(gap.weight for gap in found.cases)
        without = fsum(row.weight for row in found.without_case)
        assert cases + without == pytest.approx(found.weights.coverage.weight, abs=1e-12)
        assert fsum(row.share for row in found.unplaced) == pytest.approx(
            found.weights.total(UNPLACED).weight
        )

    def test_idle_time_and_gaps(self) -> None:
        rows = {row.application: row for row in report(PAIRS, CHAT, SEARCH).occupancy}
        assert rows["chat"].idle == pytest.approx(100 / 300)
        assert rows["search"].idle == 0
        assert [(gap.count, gap.total_us) for gap in rows["chat"].gaps] == [(3, 100)]

    def test_vendor_bounds_where_nothing_was_calibrated(self) -> None:
        found = report([made("x", [norm(10, 8)])], roofline=vendor)
        assert found.cases[0].recoverable == pytest.approx(0.6)
        assert any("not calibrated" in note for note in found.notes)

    def test_notes(self) -> None:
        said = "\n".join(report([*PAIRS, made("idle", [])]).notes)
        assert "no card-hours given: every file counts the same hour" in said
        assert "without device time, and left out: idle" in said
        assert "a profile does not name its hardware" in said
        assert "search: 3 events without a time" in said
        assert "no card-hours" not in "\n".join(report(PAIRS, CHAT, SEARCH).notes)


class TestOverview:
    def test_sums(self) -> None:
        placed = [one for _, own in PAIRS for one in own]
        found = overview(placed, suggestion)
        assert fsum(row.share for row in found.targets) == pytest.approx(1, abs=1e-12)
        assert fsum(row.busy_us for row in found.targets) == pytest.approx(found.busy_us) == 300
        assert found.covered == pytest.approx(150 / 300)
        first = found.unplaced[0]
        assert (first.busy_us, first.rule) == (90, "- {kernel: kernel_1, target: other}")

    def test_further_kernels_have_the_case_of_their_call(self) -> None:
        further = Part("rms_norm", 7, "decode", why="a further kernel of a call", calls=0)
        (row,) = overview(made("x", [norm(3, 8), further])[1], suggestion).targets
        assert (row.busy_us, row.calls, row.without_case_us) == (10, 1, 0)

    def test_nothing_at_all(self) -> None:
        assert overview([], suggestion).targets == ()


class _Links(HTMLParser):
    """Tags and attributes that a page really has."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.external: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.external += [
            f"{tag} {name}" for name, _ in attrs if name in ("src", "href") or name.startswith("on")
        ]


class TestForms:
    def hostile(self) -> TraceReport:
        parts = [
            norm(10, 8),
            Part(UNPLACED, 30, kernel=EVIL),
            Part("rms_norm", 5, why=EVIL),
            Part("gated_rms_norm", 5, "decode", {"rows": 3, "hidden_size": 128}, {"activation": EVIL}),
        ]
        pair = made(EVIL, parts, hardware=EVIL, complaints=(EVIL,), idle_us=3)
        return report([pair], ApplicationSpec(name=EVIL, card_hours=2, files=("*",)))

    def test_html_shows_hostile_names_as_text(self) -> None:
        page = render_trace_html(self.hostile())
        found = _Links()
        found.feed(page)
        assert found.tags.count("script") == 1  # the report's own
        assert found.external == []
        assert "alert(1)&lt;/script&gt;" in page
        assert "\x1b" not in page
        assert "\u202e" not in page

    def test_the_terminal_gets_no_escape_and_no_markup(self) -> None:
        shown = text(render_trace_report(self.hostile()))
        assert "\x1b[31m" not in shown
        assert "\u202e" not in shown
        assert "[red]" in shown  # as text

    def test_json_is_the_record(self) -> None:
        found = report(PAIRS, CHAT, SEARCH)
        data = json.loads(found.model_dump_json())
        assert data["weights"]["coverage"]["weight"] == found.weights.coverage.weight
        assert data["cases"][0]["recoverable"] == found.cases[0].recoverable
        assert data["occupancy"][0]["idle"] == found.occupancy[0].idle

    def test_terminal_and_html_show_the_same_figures(self) -> None:
        found = report(PAIRS, CHAT, SEARCH)
        shown, page = text(render_trace_report(found)), render_trace_html(found)
        for figure in (share(found.weights.coverage.weight), hours(found.operators[0].recoverable), "chat"):
            assert figure in shown
            assert figure in page
        assert "3 profiles of 2 applications, 400 card-hours" in shown

    def test_every_table_has_a_form_for_the_terminal(self) -> None:
        placed = [one for _, own in PAIRS for one in own]
        fleet = assign([profile for profile, _ in PAIRS], [CHAT, SEARCH])
        cases, without = observe(placed, scale(fleet), fleet)
        assert "search" in text(render_profiles([profile for profile, _ in PAIRS]))
        assert "the rules that would place them" in text(render_overview(overview(placed, suggestion)))
        shown = text(render_weights(weigh(fleet, placed), reduce(cases), without))
        assert "graph replay" in shown
        assert "token_count=8" in shown
        published = load_workload()
        assert "rank correlation (Spearman) 1.00" in text(
            render_side_by_side(side_by_side(published, published))
        )


class TestText:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [(None, "–"), (0.0, "0.00%"), (1e-7, "<0.01%"), (0.0123, "1.23%"), (0.123, "12.3%"), (1.0, "100.0%")],
    )  # fmt: skip
    def test_shares(self, value: float | None, shown: str) -> None:
        assert share(value) == shown

    def test_a_thin_weight_says_so(self) -> None:
        rows = {row.target: row for row in report(PAIRS, CHAT, SEARCH).weights.totals}
        assert interval(rows["l2_norm"]) == "one profile"
        assert interval(rows["rms_norm"]) == "search: one profile"
        two = report(PAIRS[:2], CHAT).weights.total("rms_norm")
        assert interval(two).endswith("] two profiles")


class TestProblems:
    """What the commands ask of real problems and real hardware files."""

    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ATREX_HOME", str(tmp_path))

    def test_hardware_takes_our_name(self) -> None:
        profiles = [made("x", [norm(1, 8)])[0], made("y", [norm(1, 8)], hardware="Some NPU")[0]]
        assert [one.hardware for one in named(profiles)] == ["H200", "Some NPU"]
        assert {one.hardware for one in named(profiles, "NVIDIA H20")} == {"H20"}
        with pytest.raises(UsageError, match="did you mean H200"):
            named(profiles, "H2000")

    def test_a_bound_is_bytes_over_bandwidth(self) -> None:
        found = rooflines()("H200", "rms_norm", {"eps": 1e-6}, {"token_count": 8192, "hidden_size": 4096})
        assert found is not None
        assert found.attainable_us is None
        moved = (2 * 8192 * 4096 + 4096) * 2
        assert found.sol_us == pytest.approx(moved / 4.8e12 * 1e6, rel=1e-3)
        assert (
            rooflines()("Some NPU", "rms_norm", {"eps": 1e-6}, {"token_count": 8, "hidden_size": 8}) is None
        )

    def test_a_shape_has_one_name_however_it_is_stated(self) -> None:
        stated = identify("rms_norm", {"eps": 1e-6}, {"token_count": 8, "hidden_size": 64})
        assert stated == identify("rms_norm", {}, {"hidden_size": 64, "token_count": 8})
        assert stated != identify("rms_norm", {"eps": 1e-5}, {"token_count": 8, "hidden_size": 64})
        with pytest.raises(UsageError, match="rms_norm: input"):
            identify("rms_norm", {}, {"token_count": 8})
