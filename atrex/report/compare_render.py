"""A comparison of runs for a terminal and as GitHub markdown: the same cells in both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from atrex.report.compare import Comparison, Group, Line
from atrex.report.intervals import Estimate
from atrex.report.markdown import escape, table
from atrex.report.terminal import plain_table
from atrex.report.text import DASH, duration, factor, plain
from atrex.report.workload_text import fine, tokens, usd

METHOD = "mean over runs with Student's t interval, differences with Welch's; each at 95 %, not all jointly"
CHANGE = "Δ: less the first agent's S; in bold where its interval excludes 0"
BY_OPERATOR = "S by operator, by weight × difference"
ALL = "all operators"


@dataclass(frozen=True, slots=True)
class Row:
    """How a figure is called and written; `unknown` stands where it is not known."""

    label: str
    show: Callable[[float], str]
    unknown: str = DASH


def _share(value: float) -> str:
    return f"{value:.1%}"


ROWS = {
    "S": Row("S", fine),
    "A": Row("A", fine, "not calibrated"),
    "S_prefill": Row("S, prefill", fine),
    "S_decode": Row("S, decode", fine),
    "coverage": Row("coverage", _share),
    "own_kernels": Row("own kernels, of weight", _share),
    "accepted": Row("runs with an accepted kernel", _share),
    "fast_1": Row("fast_1, of cases", _share, "not measured beside eager"),
    "fast_1_weighted": Row("fast_1, of weight", _share, "not measured beside eager"),
    "fast_2": Row("fast_2, of cases", _share, "not measured beside eager"),
    "fast_2_weighted": Row("fast_2, of weight", _share, "not measured beside eager"),
    "speedup_vs_eager": Row("× eager", factor, "not measured"),
    "speedup_vs_compile": Row("× compile", factor, "not measured"),
    "tokens": Row("tokens", tokens),
    "dollars": Row("dollars", usd, "price unknown"),
    "tokens_per_point": Row("tokens per point of S", tokens),
    "dollars_per_point": Row("dollars per point of S", usd),
    "time_s": Row("time", duration),
}
ASKING = ("tokens", "dollars", "tokens_per_point", "dollars_per_point")  # left out where no model was asked
PARTS = ("S_prefill", "S_decode", "own_kernels")  # left out where no group knows it


def render_terminal(comparison: Comparison) -> RenderableType:
    """Notes, the figures with a column a group, then S by operator."""
    figures = plain_table()
    figures.add_column("", style="dim", no_wrap=True)
    for group in comparison.groups:
        figures.add_column(Text(plain(group.agent, 40)), overflow="fold")
    for cells in _figures(comparison):
        figures.add_row(*map(Text, cells))
    notes = [Text(f"! {plain(note)}", style="yellow") for note in comparison.notes]
    return Stack(
        Text(f"runs over {plain(comparison.of)}", style="bold"),
        *notes,
        figures,
        Text(METHOD, style="dim"),
        Text(),
        Text(BY_OPERATOR, style="bold"),
        _lines(comparison),
        Text(CHANGE if _others(comparison) else "", style="dim"),
    )


def render_markdown(comparison: Comparison) -> str:
    """The same as one page."""
    agents = [escape(group.agent) for group in comparison.groups]
    parts = [f"# Runs over {escape(comparison.of)}"]
    if comparison.notes:
        parts.append("\n".join(f"- **{escape(note)}**" for note in comparison.notes))
    rows = [[label, *map(escape, cells)] for label, *cells in _figures(comparison)]
    parts += [table(("", *agents), rows), f"{METHOD[0].upper()}{METHOD[1:]}."]
    header = [escape(name) for name in _header(comparison)]
    body = [
        [escape(name), weight, *cells, *(f"**{text}**" if beyond else text for text, beyond in changes)]
        for name, weight, cells, changes in map(_cells, _all_lines(comparison))
    ]
    parts += [f"## {BY_OPERATOR}", table(header, body)]
    parts += [f"{CHANGE}."] if _others(comparison) else []
    listed = [
        (escape(group.agent), escape(", ".join(group.runs), 4000), ", ".join(map(str, group.seeds)))
        for group in comparison.groups
    ]
    parts += ["## Runs", table(("agent", "runs", "seeds"), listed)]
    return "\n\n".join(parts) + "\n"


def _lines(comparison: Comparison) -> Table:
    lines = plain_table()
    for number, name in enumerate(_header(comparison)):
        lines.add_column(Text(name), justify="right" if number else "left", overflow="fold")
    lines.columns[0].no_wrap = lines.columns[1].no_wrap = True
    for name, weight, cells, changes in map(_cells, _all_lines(comparison)):
        shown = [Text(text, style="bold" if beyond else "") for text, beyond in changes]
        lines.add_row(Text(name), Text(weight), *map(Text, cells), *shown)
    return lines


def _others(comparison: Comparison) -> tuple[Group, ...]:
    return comparison.groups[1:]


def _header(comparison: Comparison) -> list[str]:
    agents = [f"S {plain(group.agent, 40)}" for group in comparison.groups]
    return ["operator", "w", *agents, *(f"Δ {plain(group.agent, 40)}" for group in _others(comparison))]


def _all_lines(comparison: Comparison) -> list[Line]:
    if not comparison.operators:
        return [comparison.total.model_copy(update={"name": comparison.of})]
    return [comparison.total.model_copy(update={"name": ALL}), *comparison.operators]


def _cells(line: Line) -> tuple[str, str, list[str], list[tuple[str, bool]]]:
    """Name, weight, mean S by group, and each difference with whether it is beyond noise."""
    means = [fine(one.value if one else None) for one in line.S]
    changes = [(_signed(one), bool(one and one.beyond_noise)) for one in line.differences]
    return plain(line.name, 40), f"{line.weight:.4f}" if line.weight else DASH, means, changes


def _signed(value: Estimate | None) -> str:
    return DASH if value is None else estimate(value, lambda number: f"{number:+.4f}")


def _figures(comparison: Comparison) -> list[list[str]]:
    """A row a figure, the label first, then a cell a group."""
    groups = comparison.groups
    names = [
        name
        for name in groups[0].figures
        if name not in (*ASKING, *PARTS) or any(group.figures[_asked(name)] for group in groups)
    ]
    runs = ["runs", *(str(len(group.runs)) for group in groups)]
    return [runs, *([ROWS[name].label, *(_figure(name, group) for group in groups)] for name in names)]


def _asked(name: str) -> str:
    return "tokens" if name in ASKING else name


def _figure(name: str, group: Group) -> str:
    row, value = ROWS[name], group.figures[name]
    if value is None:
        silent = name in ASKING and group.figures["tokens"] is None
        return DASH if silent else row.unknown
    some = f" ({value.n} of {len(group.runs)} runs)" if value.n < len(group.runs) else ""
    return estimate(value, row.show) + some


def estimate(value: Estimate, show: Callable[[float], str]) -> str:
    """A value with its interval, where it has one: ``0.0412 [0.0401, 0.0423]``."""
    if value.low is None or value.high is None:
        return show(value.value)
    return f"{show(value.value)} [{show(value.low)}, {show(value.high)}]"
