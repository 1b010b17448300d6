"""The options of `atrex audit`; `atrex.cli` registers it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from atrex.commands.options import Device, Json, RunsDir, Seed


def audit(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="where kernels and references lie")],
    format: Annotated[
        Literal["kernelbench", "tritonbench-t", "kernelbenchx", "gpuemu", "atrex-bench"],
        typer.Option("--format", help="how they lie there: docs/foreign.md"),
    ],
    jobs: Annotated[int, typer.Option(min=1, max=256, help="kernels judged at a time")] = 2,
    device: Device = "auto",
    level: Annotated[
        Literal["screen", "full"], typer.Option(help="how much of each property to look at")
    ] = "screen",
    limit: Annotated[int | None, typer.Option(min=1, help="only the first N kernels")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds a call may take")] = 60.0,
    seed: Seed = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="go on with this run")] = None,
    runs: RunsDir = None,
    html: Annotated[bool, typer.Option("--html", help="print the report as HTML")] = False,
    json: Json = False,
) -> None:
    """Verify thousands of foreign kernels: how many are wrong, and where a source's own labels differ."""
    from atrex.commands.foreign_audit import Options
    from atrex.commands.foreign_audit import audit as run

    run(Options(directory, format, jobs, device, level, limit, timeout, seed, resume, runs, html, json))
