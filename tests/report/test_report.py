"""Reports in all their forms: complete, consistent, and safe against what a candidate writes."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from pydantic import ValidationError
from rich.console import Console, RenderableType
from rich.text import Text

from atrex.errors import UsageError
from atrex.records import Judgement, Status, Verdict
from atrex.report import HEADLINE, RunReport, load_report
from atrex.report import markdown as md
from atrex.report.html import render_html
from atrex.report.markdown import render_markdown
from atrex.report.plots import history, roofline
from atrex.report.terminal import WIDTH, render_terminal, render_verdict_line, render_verdicts
from atrex.report.text import bar, duration, factor, micros, outcome, plain
from atrex.score import CaseScore


def printed(renderable: RenderableType, colour: bool = False) -> str:
    out = io.StringIO()
    Console(file=out, width=WIDTH, force_terminal=colour, color_system="standard" if colour else None).print(
        renderable
    )
    return out.getvalue()


@pytest.fixture
def failed(report: RunReport, rejected: Judgement) -> RunReport:
    cases = tuple(CaseScore(case=one.case) for one in report.cases)
    return report.model_copy(update={"judgement": rejected, "cases": cases, "kernel": None})


@pytest.fixture
def empty() -> RunReport:
    return RunReport(
        op="rms_norm", device="cpu", dsl="cpp", run="r", kernel=None,
        candidates_tried=0, candidates_accepted=0, seconds=0.2,
    )  # fmt: skip


def test_json_has_the_promised_keys_first_and_loads_again(report: RunReport, tmp_path: Path) -> None:
    data = report.model_dump(mode="json")
    assert tuple(data)[: len(HEADLINE)] == HEADLINE
    assert {"median", "low", "high"} <= set(data["speedup_vs_eager"])
    assert data["verdicts"]["layouts"] == "UNSUPPORTED"
    assert data["accepted"] is True
    assert data["S"] == pytest.approx(sum(row["S"] for row in data["cases"]) / len(data["cases"]))
    path = tmp_path / "report.json"
    path.write_text(report.model_dump_json(indent=2))
    assert load_report(path) == report


def test_a_forged_headline_is_recomputed(failed: RunReport, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(failed.model_dump_json().replace('"accepted":false', '"accepted":true'))
    assert not load_report(path).accepted


def test_a_report_that_cannot_be_read_names_file_and_field(report: RunReport, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with pytest.raises(UsageError, match="no report yet"):
        load_report(path)
    path.write_text(report.model_dump_json().replace('"device":"cuda"', '"device":"tpu"', 1))
    with pytest.raises(UsageError, match=r"report\.json: field device"):
        load_report(path)


def test_a_rejected_kernel_has_no_measured_case(report: RunReport, rejected: Judgement) -> None:
    with pytest.raises(ValidationError, match="no measured case"):
        RunReport.model_validate(report.model_dump() | {"judgement": rejected.model_dump()})


def test_the_terminal_report_fits_and_shows_where_points_are_lost(report: RunReport) -> None:
    text = printed(render_terminal(report))
    assert max(map(len, text.splitlines())) <= WIDTH
    order = re.findall(r"^(\d{3})  ", text, flags=re.M)
    assert order == [one.case.id[-3:] for one in sorted(report.cases, key=lambda one: one.S)]
    assert "14 of 15 cases" in text
    assert "missing" in text
    row = next(line for line in text.splitlines() if line.startswith("012"))
    assert "…" not in row  # nothing of a production-sized row is cut
    assert "█" in row


def test_hostile_text_reaches_no_terminal(failed: RunReport, rejected: Judgement) -> None:
    for piece in (
        render_terminal(failed),
        render_verdicts(rejected),
        *map(render_verdict_line, rejected.verdicts),
    ):
        text = printed(piece)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
        coloured = re.sub(r"\x1b\[[\d;]*m", "", printed(piece, colour=True))  # rich's own colours
        assert "\x1b" not in coloured
    assert "[bold]x[/]" in printed(render_verdicts(rejected))  # shown, not taken for markup


def test_verdicts_show_witness_and_the_command_that_reproduces(rejected: Judgement) -> None:
    text, marked = printed(render_verdicts(rejected)), md.render_verdicts(rejected)
    command = "atrex verify bad.py --op rms_norm --device cuda --level full --gate full_write --seed 77"
    assert command in " ".join(text.split())
    assert f"\n    {command}\n" in marked
    for wanted in ("out[63, 2047]", "illegal access: reads past", "unwritten 2048", "not run"):
        assert wanted in text
    for status in ("PASS", "FAIL", "ERROR"):
        assert status in text
        assert status in marked


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ({"interface": Status.FAIL, "purity": Status.ERROR}, "REJECTED"),
        ({"interface": Status.PASS, "purity": Status.ERROR}, "UNDECIDED"),
        ({"interface": Status.INCONCLUSIVE}, "UNDECIDED"),
        ({"interface": Status.UNSUPPORTED}, "REJECTED"),
        ({"layouts": Status.UNSUPPORTED}, "INCOMPLETE"),
        ({}, "INCOMPLETE"),
    ],
)
def test_the_harness_fault_is_never_the_candidates(
    rejected: Judgement, statuses: dict[str, Status], expected: str
) -> None:
    verdicts = tuple(
        Verdict(gate=gate, status=status, tolerance_free=True, reason="why")
        for gate, status in statuses.items()
    )
    assert outcome(rejected.model_copy(update={"verdicts": verdicts})) == expected


def test_markdown_tables_keep_their_columns(report: RunReport, failed: RunReport) -> None:
    for text in (render_markdown(report), render_markdown(failed)):
        for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1, block
        assert "<script" not in text
        assert "://" not in text.replace("`", "")
        assert "\x1b" not in text
        assert "\n# head" not in text


def test_code_spans_hold_backticks() -> None:
    assert md.code("a `b` ``c``") == "``` a `b` ``c`` ```"
    assert md.code("plain") == "`plain`"


class Page(HTMLParser):
    """Collects what a browser would see of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_one_closed_file_in_which_only_its_own_script_runs(
    report: RunReport, failed: RunReport
) -> None:
    for text in (render_html(report), render_html(failed)):
        page = Page(text)
        assert page.open == []
        assert [tag for tag, _ in page.tags].count("script") == 1
        for tag, attributes in page.tags:
            assert tag not in ("link", "img", "iframe", "object", "form", "a", "base")
            assert not {"src", "href", "srcset", "action"} & set(attributes)
            assert not any(name.startswith("on") for name in attributes)
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", text)
        policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
        assert policy is not None
        assert policy.startswith("default-src 'none'")
        assert "script-src 'sha256-" in policy


def test_html_hostile_names_in_every_field(report: RunReport) -> None:
    evil = '"><img src=x onerror=alert(1)>'
    cases = tuple(
        CaseScore(case=one.case.model_copy(update={"id": evil, "input": {evil: 3}}), cost=one.cost)
        for one in report.cases[:1]
    )
    changed = report.model_copy(
        update={"op": evil, "run": evil, "kernel": evil, "command": evil, "cases": cases, "notes": (evil,)}
    )
    assert "<img" not in render_html(changed)
    assert "<img" not in re.sub("`[^`]*`", "", render_markdown(changed))


def test_plots_show_every_case_and_step(report: RunReport) -> None:
    figure = ElementTree.fromstring(roofline(report.cases))
    kinds = [element.get("class") for element in figure.iter()]
    assert kinds.count("eager") == 14
    assert (kinds.count("sol"), kinds.count("attainable")) == (1, 1)
    search = ElementTree.fromstring(history(report.history, report.dropout))
    kinds = [element.get("class") for element in search.iter() if element.tag != "line"]
    promoted = sum(step.outcome == "promoted" for step in report.history)
    wrong = sum(step.outcome == "wrong" for step in report.history)
    assert (kinds.count("won"), kinds.count("bad")) == (promoted, wrong)
    assert kinds.count("episode") == 1
    for element in [*figure.iter(), *search.iter()]:
        for name in ("x", "y", "x1", "y1", "x2", "y2", "cx", "cy"):
            assert 0 <= float(element.get(name, "0")) <= 560


def test_plots_of_nothing_and_of_one() -> None:
    assert roofline([]) == ""
    assert history([], []) == ""


def test_one_case_and_one_step(report: RunReport) -> None:
    one = report.model_copy(update={"cases": report.cases[:1], "history": report.history[:1]})
    Page(render_html(one))
    ElementTree.fromstring(roofline(one.cases))
    assert "over 1 of 1 cases" in printed(render_terminal(one))


def test_a_run_without_a_kernel_reports_all_the_same(empty: RunReport, failed: RunReport) -> None:
    for nothing in (empty, failed):
        assert nothing.speedup_vs_eager is None
        assert nothing.S == 0.0
        assert "not measured" in printed(render_terminal(nothing))
        assert "none accepted" in printed(render_terminal(nothing))
        render_markdown(nothing)
        Page(render_html(nothing))
    assert "NO KERNEL" in printed(render_terminal(empty))


def test_numbers_as_people_read_them() -> None:
    assert [micros(v) for v in (0.0312, 9.994, 9.996, 12.34, 123.4, 12345.6, None)] == [
        "0.03", "9.99", "10.0", "12.3", "123", "12346", "–",
    ]  # fmt: skip
    assert [factor(v) for v in (1.0, 9.999, 31.25, 123.4)] == ["1.00", "10.0", "31.2", "123"]
    assert [duration(v) for v in (0.21, 42, 303, 7620)] == ["0.2 s", "42 s", "5 min 3 s", "2 h 7 min"]
    assert [len(bar(share, 4)) for share in (0, 0.03, 0.5, 1, 7)] == [0, 1, 2, 4, 4]
    assert plain("a\x1b[2J\r\nb\u202e\u200b" + "x" * 1000, 20) == "a[2J bxxxxxxxxxxxxx…"
    assert isinstance(render_verdict_line(Verdict(gate="g", status=Status.PASS, tolerance_free=True)), Text)
