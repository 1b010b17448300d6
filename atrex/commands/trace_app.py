"""The options of `atrex trace`; `atrex.cli` registers it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atrex.commands.options import Json

if TYPE_CHECKING:
    from atrex.commands.trace import Sharing
    from atrex.commands.trace_files import Reading

trace_app = typer.Typer(
    no_args_is_help=True, help="From production profiles to a weighted workload: docs/traces.md."
)

Files = Annotated[
    list[Path], typer.Argument(metavar="FILES...", help="profiler files, or what `trace ingest -o` wrote")
]
Jobs = Annotated[int | None, typer.Option(min=1, max=1024, help="files read at a time [default: cores]")]
Strict = Annotated[bool, typer.Option("--strict", help="a file that cannot be read is an error")]
RulesFile = Annotated[Path | None, typer.Option("--rules", help="rules [default: traces/rules.yaml]")]
Gpu = Annotated[
    str | None, typer.Option(help="the hardware of all files [default: as each file names its own]")
]
CardHours = Annotated[
    list[str] | None,
    typer.Option("--card-hours", metavar="NAME=HOURS", help="an application; repeatable"),
]
Applications = Annotated[
    Path | None, typer.Option("--applications", help="a YAML or CSV file of applications instead")
]
Seed = Annotated[int, typer.Option(min=0, help="seed of the bootstrap")]


@trace_app.command()
def ingest(
    files: Files,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write condensed profiles")] = None,
    jobs: Jobs = None,
    strict: Strict = False,
    gpu: Gpu = None,
    json: Json = False,
) -> None:
    """Condense profiler files to the small tables that the other commands work on."""
    from atrex.commands.trace_files import ingest as run

    run(_reading(files, jobs, strict, None, gpu), output, as_json=json)


@trace_app.command()
def show(
    files: Files,
    rules: RulesFile = None,
    unplaced: Annotated[bool, typer.Option("--unplaced", help="only what no rule places, all of it")] = False,
    jobs: Jobs = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Device time by operator and phase, and the kernels that no rule places."""
    from atrex.commands.trace import show as run

    run(_reading(files, jobs, strict, rules, None), only_unplaced=unplaced, as_json=json)


@trace_app.command()
def weights(
    files: Files,
    card_hours: CardHours = None,
    applications: Applications = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write the workload")] = None,
    name: Annotated[
        str | None, typer.Option(help="of the workload [default: the output's file name]")
    ] = None,
    keep: Annotated[float, typer.Option(help="share of its time that an operator's shapes must hold")] = 0.95,
    compare: Annotated[
        str | None, typer.Option(help="put this workload beside it: a name, such as atrex-bench, or a file")
    ] = None,
    rules: RulesFile = None,
    gpu: Gpu = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Weigh the operators by card-hours, and write a workload for --workload."""
    from atrex.commands.trace import Output
    from atrex.commands.trace import weights as run

    run(
        _reading(files, jobs, strict, rules, gpu),
        _sharing(card_hours, applications, seed),
        Output(output, name, keep, compare, json),
    )


@trace_app.command()
def report(
    files: Files,
    card_hours: CardHours = None,
    applications: Applications = None,
    html: Annotated[Path | None, typer.Option("--html", help="write a page here")] = None,
    rules: RulesFile = None,
    gpu: Gpu = None,
    seed: Seed = 0,
    jobs: Jobs = None,
    strict: Strict = False,
    json: Json = False,
) -> None:
    """Where the GPU time goes, how far it is from the roofline, and where optimising pays."""
    from atrex.commands.trace import report as run

    run(
        _reading(files, jobs, strict, rules, gpu),
        _sharing(card_hours, applications, seed),
        html,
        as_json=json,
    )


@trace_app.command()
def scrub(
    source: Annotated[Path, typer.Argument(metavar="IN", help="a profiler file")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="the same without names")],
) -> None:
    """Remove hosts, paths, users, arguments and model names from a trace; its workload stays the same."""
    from atrex.commands.trace_files import scrub as run

    run(source, target)


def _reading(
    files: list[Path], jobs: int | None, strict: bool, rules: Path | None, gpu: str | None
) -> Reading:
    from atrex.commands.trace_files import Reading

    return Reading(tuple(files), jobs, strict, rules, gpu)


def _sharing(card_hours: list[str] | None, applications: Path | None, seed: int) -> Sharing:
    from atrex.commands.trace import Sharing

    return Sharing(tuple(card_hours or ()), applications, seed)
