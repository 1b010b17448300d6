"""`atrex runs` and `atrex report`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.table import Table

from atrex.commands.common import console_for_output, print_json
from atrex.report import render
from atrex.report.workload import load_any_report
from atrex.runs import BrokenRun, Run, find_run, list_runs, runs_root, write_atomic

Format = Literal["terminal", "markdown", "json", "html"]


def runs(root: Path | None, *, as_json: bool) -> None:
    """All runs, the newest first; broken ones are shown as such."""
    found = sorted(list_runs(runs_root(root)), key=lambda run: run.name, reverse=True)
    rows = [_row(run) for run in found]
    if as_json:
        print_json(rows)
        return
    table = Table("run", "operator", "device", "dsl", "state", title=f"{runs_root(root)}")
    for row in rows:
        table.add_row(row["run"], row["op"], row["device"], row["dsl"], row["state"])
    console_for_output().print(table)


def _row(run: Run | BrokenRun) -> dict[str, str]:
    if isinstance(run, BrokenRun):
        return {"run": run.name, "op": "", "device": "", "dsl": "", "state": f"broken: {run.reason}"}
    state = "reported" if run.report().exists() else "unfinished"
    meta = run.meta
    return {
        "run": run.name,
        "op": meta.operator,
        "device": meta.device,
        "dsl": meta.dsl or "",
        "state": state,
    }


def report(wanted: str, root: Path | None, format: Format, output: Path | None) -> None:
    """Show the report of a run in one of its forms, or write it to a file."""
    loaded = load_any_report(find_run(wanted, runs_root(root)).report())
    if format == "terminal" and output is None:
        console_for_output().print(render.terminal(loaded))
        return
    if format == "html":
        text = render.html(loaded)
    elif format == "json":
        text = loaded.model_dump_json(indent=2)
    else:
        text = render.markdown(loaded)
    if output is None:
        print(text)
    else:
        write_atomic(output, text)
