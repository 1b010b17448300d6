"""The command line. Options live here, work elsewhere; heavy modules are imported inside the commands."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Annotated, Literal

import typer

from atrex.commands.agent_app import bench, optimize
from atrex.commands.audit_app import audit
from atrex.commands.options import (
    CaseNames,
    Device,
    FailOn,
    File,
    Json,
    Operator,
    RunsDir,
    Seed,
    Workload,
)
from atrex.commands.trace_app import trace_app
from atrex.errors import AtrexError

app = typer.Typer(
    name="atrex",
    help="Optimise GPU kernels by what a fleet really runs, and accept only those that pass every gate.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
knowledge_app = typer.Typer(no_args_is_help=True, help="Search, extend and evaluate the knowledge base.")
app.add_typer(knowledge_app, name="knowledge")
app.add_typer(trace_app, name="trace")
for command in (optimize, bench, audit):
    app.command()(command)


@app.command()
def verify(
    file: File,
    op: Annotated[str | None, typer.Option("--op", help="operator, in any spelling")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="instead of --op: any PyTorch reference with example inputs")
    ] = None,
    contract: Annotated[
        Path | None, typer.Option(help="with --reference: an edited contract [default: inferred]")
    ] = None,
    print_contract: Annotated[
        bool, typer.Option("--print-contract", help="with --reference: print the contract, judge nothing")
    ] = False,
    device: Device = "auto",
    dsl: Annotated[
        Literal["torch", "triton", "gluon", "cuda", "cpp"] | None,
        typer.Option(help="[default: read off the imports]"),
    ] = None,
    gate: Annotated[list[str] | None, typer.Option(help="only this gate; repeatable")] = None,
    all: Annotated[bool, typer.Option("--all", help="go on past a failure")] = False,
    level: Annotated[
        Literal["screen", "full"], typer.Option(help="how much of each property to look at")
    ] = "full",
    case: CaseNames = None,
    workload: Workload = "atrex-bench",
    seed: Seed = None,
    timeout: Annotated[
        float | None, typer.Option(min=0.1, help="seconds a call may take [default: 60]")
    ] = None,
    json: Json = False,
) -> None:
    """Run the gates on any file written to the candidate contract."""
    from atrex.commands.foreign import verify_either as run

    run(
        file,
        op,
        reference,
        contract,
        print_contract=print_contract,
        device=device,
        dsl=dsl,
        workload=workload,
        gates=tuple(gate or ()),
        cases=tuple(case or ()),
        level=level,
        everything=all,
        seed=seed,
        timeout=timeout,
        as_json=json,
    )


CaseLimit = Annotated[int | None, typer.Option("--cases", min=1, help="only the first N cases")]
Quick = Annotated[bool, typer.Option("--quick", help="fewer rounds, wider intervals")]


@app.command()
def measure(
    file: File,
    op: Operator,
    device: Device = "auto",
    workload: Workload = "atrex-bench",
    case: CaseNames = None,
    cases: CaseLimit = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Time one candidate on the workload's cases. The gates are not run: see verify."""
    from atrex.commands.judging import measure as run

    run(
        [file],
        op,
        device=device,
        workload=workload,
        cases=tuple(case or ()),
        limit=cases,
        quick=quick,
        as_json=json,
    )


@app.command()
def compare(
    first: File,
    second: Annotated[Path, typer.Argument(help="the candidate to compare with")],
    op: Operator,
    device: Device = "auto",
    workload: Workload = "atrex-bench",
    case: CaseNames = None,
    cases: CaseLimit = None,
    quick: Quick = False,
    json: Json = False,
) -> None:
    """Time two candidates in interleaved rounds; the ratio comes with its interval."""
    from atrex.commands.judging import measure as run

    files = [first, second]
    run(
        files,
        op,
        device=device,
        workload=workload,
        cases=tuple(case or ()),
        limit=cases,
        quick=quick,
        as_json=json,
    )


@app.command("list")
def list_(workload: Workload = "atrex-bench", json: Json = False) -> None:
    """Operators, with their cases and weights."""
    from atrex.commands.catalogue import list_operators

    list_operators(workload, as_json=json)


@app.command()
def show(
    op: Annotated[str, typer.Argument(help="operator, in any spelling")],
    workload: Workload = "atrex-bench",
    gpu: Annotated[str | None, typer.Option(help="hardware whose bounds to show [default: H200]")] = None,
    json: Json = False,
) -> None:
    """An operator's contract, cases and bounds."""
    from atrex.commands.catalogue import show_operator

    show_operator(op, workload, gpu, as_json=json)


@app.command()
def roofline(
    op: Annotated[str | None, typer.Argument(help="operator [default: all]")] = None,
    gpu: Annotated[str | None, typer.Option(help="hardware by name [default: this machine]")] = None,
    workload: Workload = "atrex-bench",
    json: Json = False,
) -> None:
    """Bounds of every case, from vendor peaks and, for this machine, from measured ones."""
    from atrex.commands.catalogue import roofline as run

    run(op, workload, gpu, as_json=json)


@app.command("audit-tasks")
def audit_tasks(
    op: Annotated[list[str] | None, typer.Option("--op", help="operator; repeatable [default: all]")] = None,
    device: Device = "auto",
    scale: Annotated[Literal["full", "small"], typer.Option(help="small: cases reduced for a CPU")] = "full",
    case: CaseNames = None,
    cases: CaseLimit = None,
    workload: Workload = "atrex-bench",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write a Markdown page here")] = None,
    json: Json = False,
) -> None:
    """Which trivial kernels a plain allclose accepts on production inputs, and what rejects them here."""
    from atrex.commands.audit import Options
    from atrex.commands.audit import audit_tasks as run

    run(Options(tuple(op or ()), device, scale, tuple(case or ()), cases, workload), output, as_json=json)


@app.command()
def calibrate(device: Device = "auto", quick: Quick = False, json: Json = False) -> None:
    """Measure this machine's peaks, bandwidth and launch floor, and keep them."""
    from atrex.commands.machine import calibrate as run

    run(device, quick=quick, as_json=json)


@app.command()
def doctor(json: Json = False) -> None:
    """What works on this machine, and which layers of the sandbox are active."""
    from atrex.commands.machine import doctor as run

    run(as_json=json)


@app.command()
def fallbacks(
    path: Annotated[str, typer.Argument(metavar="PATH", help="a file, a directory, or a run")],
    static: Annotated[bool, typer.Option("--static", help="only read the files; run nothing")] = False,
    device: Device = "auto",
    cases: Annotated[int, typer.Option(min=1, help="production cases that each file is run on")] = 2,
    op: Annotated[str, typer.Option("--op", help="operator [default: by file or folder name]")] = "",
    entry: Annotated[str, typer.Option(help="class or function [default: ModelNew or Model]")] = "",
    workload: Workload = "atrex-bench",
    jobs: Annotated[int | None, typer.Option(min=1, help="files read at a time [default: cores]")] = None,
    fail_on: Annotated[
        FailOn | None,
        typer.Option("--fail-on", help="exit 1 if a file is that bad, or worse (in this order)"),
    ] = None,
    runs: RunsDir = None,
    sarif: Annotated[bool, typer.Option("--sarif", help="print SARIF 2.1.0, for code review")] = False,
    json: Json = False,
) -> None:
    """Hunt PyTorch fallbacks in agent output: who did the work, file by file."""
    from atrex.commands.fallbacks import Options
    from atrex.commands.fallbacks import fallbacks as run

    run(Options(path, static, device, cases, op, entry, workload, jobs, fail_on, runs, sarif, json))


@app.command("runs")
def runs_(runs: RunsDir = None, json: Json = False) -> None:
    """All runs, the newest first."""
    from atrex.commands.history import runs as run

    run(runs, as_json=json)


@app.command()
def report(
    run: Annotated[
        str, typer.Argument(help="a run's name, a unique part of it, its path, or `latest`")
    ] = "latest",
    runs: RunsDir = None,
    format: Annotated[
        Literal["terminal", "markdown", "json", "html"], typer.Option(help="form")
    ] = "terminal",
    html: Annotated[bool, typer.Option("--html", help="same as --format html")] = False,
    json: Annotated[bool, typer.Option("--json", help="same as --format json")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write to this file")] = None,
) -> None:
    """The report of a run: verdicts, cases, and where the points are lost."""
    from atrex.commands.history import report as show_report

    show_report(run, runs, "html" if html else "json" if json else format, output)


@app.command("compare-runs")
def compare_runs(
    run: Annotated[list[str], typer.Argument(metavar="RUN", help="runs, each as `atrex report` takes one")],
    runs: RunsDir = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
    json: Json = False,
) -> None:
    """Agents side by side: runs grouped by agent, means and differences with intervals over seeds."""
    from atrex.commands.compare_runs import compare_runs as show

    show(run, runs, as_json=json, as_markdown=markdown)


@knowledge_app.command("search")
def knowledge_search(
    query: Annotated[str, typer.Argument(help="symptoms or a technique, in words")],
    op: Annotated[str | None, typer.Option("--op", help="operator")] = None,
    dsl: Annotated[str | None, typer.Option(help="triton, cpp …")] = None,
    architecture: Annotated[str | None, typer.Option(help="sm_90, x86-64 …")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="how many")] = 5,
    json: Json = False,
) -> None:
    """Find notes and reference kernels."""
    from atrex.commands.knowledge import search

    search(query, op, dsl, architecture, k, as_json=json)


@knowledge_app.command("eval")
def knowledge_eval(json: Json = False) -> None:
    """Recall@5 and nDCG@5 on the labelled queries."""
    from atrex.commands.knowledge import evaluate

    evaluate(as_json=json)


def main(arguments: list[str] | None = None) -> int:
    """Entry point: one clear line for every error, and the exit code that belongs to it."""
    command = typer.main.get_command(app)
    try:
        # Not command.main(): it has ideas of its own about interrupts and readers that went away.
        with command.make_context("atrex", list(sys.argv[1:] if arguments is None else arguments)) as context:
            command.invoke(context)
        sys.stdout.flush()
    except typer.Exit as leaving:
        return leaving.exit_code
    except AtrexError as error:
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away
    except Exception as error:  # noqa: BLE001 - the last resort: still one line
        return _unexpected(error)
    return 0


def _unexpected(error: Exception) -> int:
    """A usage error of the option parser (an empty one has shown the help), or a defect of ours."""
    if hasattr(error, "format_message"):
        message = error.format_message()
        return _fail(message, 2) if message.strip() else 2
    if os.environ.get("ATREX_DEBUG"):
        traceback.print_exc()
    text = " ".join(str(error).split())
    return _fail(f"internal error: {type(error).__name__}: {text} (ATREX_DEBUG=1 shows where)", 70)


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"atrex: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
