"""`atrex compare-runs`: agents side by side, with intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from atrex.commands.common import console_for_output, print_json
from atrex.errors import UsageError
from atrex.report.compare import Asked, compare
from atrex.report.compare_render import render_markdown, render_terminal
from atrex.report.workload import load_any_report
from atrex.runs import Run, find_run, runs_root


def compare_runs(wanted: Sequence[str], root: Path | None, *, as_json: bool, as_markdown: bool) -> None:
    """Print the comparison. Raises UsageError for a run that is not there, has no report or does not fit."""
    found = dict[Path, Run]()
    for name in wanted:
        run = find_run(name, runs_root(root))
        if found.setdefault(run.path.resolve(), run) is not run:
            raise UsageError(f"run {run.name} is given twice; it would count as two seeds")
    comparison = compare([(_asked(run), load_any_report(run.report())) for run in found.values()])
    if as_json:
        print_json(comparison)
    elif as_markdown:
        print(render_markdown(comparison))
    else:
        console_for_output().print(render_terminal(comparison))


def _asked(run: Run) -> Asked:
    return Asked(run.name, run.meta.seed, {**run.meta.budget, **run.meta.agent})
