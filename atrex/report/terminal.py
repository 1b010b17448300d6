"""Reports and verdicts for a terminal: rich renderables that fit 110 columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from atrex.records import Judgement, Status, Verdict
from atrex.report import DropoutEpisode, RunReport, Step
from atrex.report.text import (
    DASH,
    bar,
    by_loss,
    dims,
    duration,
    eager_us,
    factor,
    lost_share,
    machine,
    metrics,
    micros,
    outcome,
    place,
    plain,
    points,
    ratio,
    reason,
    speedup,
    spread,
    standing,
    unspoken,
)
from atrex.score import CaseScore

WIDTH = 110
STEPS_SHOWN = 12
COLOURS = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.UNSUPPORTED: "yellow",
    Status.INCONCLUSIVE: "yellow",
    Status.ERROR: "bold magenta",
}
PHASES = {"prefill": "pre", "decode": "dec"}


def render_terminal(report: RunReport) -> RenderableType:
    """The whole report: headline, gates, cases by lost points, search, dropout, notes."""
    parts: list[RenderableType] = [_headline(report), _facts(report)]
    if report.judgement:
        parts += [Text(), _gate_strip(report.judgement)]
    if report.cases:
        parts += [Text(), _cases(report)]
    if report.history:
        parts += [Text(), _history(report.history)]
    parts += [_episode(episode) for episode in report.dropout]
    parts += [Text(f"! {plain(note)}", style="yellow") for note in report.notes]
    return Group(*parts)


def render_verdicts(judgement: Judgement) -> RenderableType:
    """Every gate with its status, reason, metrics, witness and the command that shows the failure again."""
    title = Text.assemble(
        (plain(judgement.operator), "bold"), "  ", _word(outcome(judgement)), f"  {judgement.level} level, "
    )
    title.append(f"{judgement.device}, seed {judgement.seed}, {duration(judgement.seconds)}")
    table = plain_table(caption="° tolerance-free: no threshold can be argued about")
    for name in ("gate", "status", "what the gate saw"):
        table.add_column(name, overflow="fold", no_wrap=False)
    for verdict in judgement.verdicts:
        mark = "°" if verdict.tolerance_free else ""
        status = Text(verdict.status, style=COLOURS[verdict.status])
        table.add_row(Text(plain(verdict.gate) + mark), status, _findings(verdict))
    if missing := unspoken(judgement):
        said = f"required, and without a verdict: {', '.join(plain(gate) for gate in missing)}"
        table.add_row(Text(), Text("not run", style="dim"), Text(said, style="dim"))
    return Group(title, table)


def render_verdict_line(verdict: Verdict) -> Text:
    """One gate on one line, for progress."""
    line = Text(f"  {plain(verdict.gate, 20):<14}").append(
        f"{verdict.status:<13}", style=COLOURS[verdict.status]
    )
    return line.append(f"{verdict.seconds:6.1f} s  ", style="dim").append(plain(reason(verdict), 80))


def _headline(report: RunReport) -> Text:
    line = Text.assemble((plain(report.op), "bold"), f" · {report.device}")
    if report.provenance:
        line.append(f" ({plain(report.provenance.hardware)})")
    return line.append(f" · {report.dsl}  ").append_text(_word(standing(report)))


def _word(word: str) -> Text:
    return Text(word, style="bold green" if word == "ACCEPTED" else "bold red")


def _facts(report: RunReport) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    tried = (
        f"{report.candidates_tried} tried, {report.candidates_accepted} accepted, {duration(report.seconds)}"
    )
    facts = [
        ("vs eager", speedup(report, "eager")),
        ("vs compile", speedup(report, "compile")),
        ("S", f"{points(report.S)} of the vendor's roofline, mean of {len(report.cases)} cases"),
        ("A", f"{points(report.A)} of the attainable bound" if report.A is not None else "not calibrated"),
        ("candidates", tried),
        ("agent", plain(report.agent)),
        ("asked", str(report.spent) if report.spent else ""),
        ("kernel", plain(report.kernel) if report.kernel else "none accepted"),
        ("not believed", plain(report.doubt)),
        ("run", plain(report.run)),
    ]
    stack = [
        f"{name} {value}" for name, value in machine(report.provenance) if name not in ("hardware", "device")
    ]
    for name, value in [*facts, ("measured with", ", ".join(stack))]:
        if value:
            grid.add_row(name, Text(value))
    return grid


def _gate_strip(judgement: Judgement) -> Text:
    line = Text("gates  ", style="dim")
    for verdict in judgement.verdicts:
        word = plain(verdict.gate) + ("" if verdict.status is Status.PASS else f" {verdict.status}")
        line.append(word, style=COLOURS[verdict.status]).append("  ")
    for gate in unspoken(judgement):
        line.append(f"{plain(gate)} not run  ", style="dim")
    return line


def _cases(report: RunReport) -> Table:
    names = " × ".join(dims(report.cases[0].case))
    table = plain_table(title="where the points are lost: (1 − S)·w, the costliest case first")
    table.caption = Text(
        f"size: {plain(names)}; µs: device time, median [p10,p90]; host: µs to issue one call"
    )
    for name in ("case", "size", "ph", "w", "µs", "host", "eager", "× eager", "S", "A", "limit", "lost"):
        right = name in ("w", "host", "eager", "S", "A")
        table.add_column(name, justify="right" if right else "left", overflow="ellipsis", no_wrap=True)
    table.columns[0].max_width, table.columns[1].max_width = 10, 16
    shares = lost_share(report)
    top = max(shares.values(), default=0.0) or 1.0
    for one in by_loss(report):
        share = shares[one.case.id]
        lost = Text(f"{share:4.0%} ").append(bar(share / top, 7), style="red")
        table.add_row(*_case_cells(one), lost)
    return table


def _case_cells(one: CaseScore) -> list[Text]:
    case, result = one.case, one.result
    size = "×".join(map(str, dims(case).values())) or DASH
    name = case.id.removeprefix(f"{case.operator}-")
    row = [plain(name, 40), plain(size, 40), PHASES[case.phase], f"{case.weight:.2g}"]
    if result is None or result.latency is None:
        cells = [Text(cell) for cell in row]
        return [*cells, Text(one.standing, style="bold red"), *(Text(DASH) for _ in range(3)), *_scores(one)]
    latency = result.latency
    row += [spread(latency), micros(latency.host_us), micros(eager_us(one)), ratio(result.vs_eager)]
    return [*(Text(cell) for cell in row), *_scores(one)]


def _scores(one: CaseScore) -> list[Text]:
    limiter = plain(one.result.bound.limiter, 6) if one.result else DASH
    return [Text(points(one.S).removeprefix("0")), Text(points(one.A).removeprefix("0")), Text(limiter)]


def _history(steps: tuple[Step, ...]) -> RenderableType:
    table = plain_table(title="search")
    for name in ("step", "bucket", "move", "predicted", "realised", "outcome"):
        table.add_column(
            name, justify="right" if name in ("step", "predicted") else "left", overflow="ellipsis"
        )
    shown = _worth_showing(steps)
    for step in shown:
        style = "green" if step.outcome == "promoted" else ""
        cells = (str(step.step), plain(step.bucket, 24), plain(step.move, 40), factor(step.predicted))
        table.add_row(*map(Text, (*cells, ratio(step.realised))), Text(plain(step.outcome, 20), style=style))
    if len(shown) == len(steps):
        return table
    hidden = f"… and {len(steps) - len(shown)} more steps in the markdown and HTML reports"
    return Group(table, Text(hidden, style="dim"))


def _worth_showing(steps: tuple[Step, ...]) -> list[Step]:
    """The steps that were promoted, filled up with the latest ones."""
    if len(steps) <= STEPS_SHOWN:
        return list(steps)
    promoted = [step for step in steps if step.outcome == "promoted"][-STEPS_SHOWN:]
    others = [step for step in steps if step.outcome != "promoted"]
    filled = promoted + others[len(others) - (STEPS_SHOWN - len(promoted)) :]
    return sorted(filled, key=lambda step: step.step)


def _episode(episode: DropoutEpisode) -> Text:
    hidden = plain(", ".join(episode.hidden), 60) or "nothing"
    steps = f"steps {episode.first}–{episode.last}"
    return Text(f"dropout {steps}: hid {hidden} (share {episode.share:.2f}): {plain(episode.outcome, 40)}")


def _findings(verdict: Verdict) -> Text:
    lines = [(reason(verdict), "bold" if verdict.status is Status.FAIL else ""), (metrics(verdict), "dim")]
    if witness := verdict.witness:
        lines.append((place(witness), ""))
        if witness.expected or witness.got:
            lines.append((f"expected {plain(witness.expected)}, got {plain(witness.got)}", ""))
        if witness.command:
            lines.append((f"$ {plain(witness.command, 2000)}", "cyan"))
    return Text("\n").join(Text(text, style=style) for text, style in lines if text)


def plain_table(title: str | None = None, caption: str | None = None) -> Table:
    """A table without lines."""
    return Table(
        title=title,
        caption=caption,
        box=None,
        padding=(0, 1, 0, 0),
        header_style="dim",
        title_justify="left",
        caption_justify="left",
        title_style="bold",
    )
