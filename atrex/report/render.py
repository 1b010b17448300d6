"""Rendering a report of either form."""

from __future__ import annotations

from rich.console import RenderableType

from atrex.report import RunReport
from atrex.report.html import render_html
from atrex.report.markdown import render_markdown
from atrex.report.terminal import render_terminal
from atrex.report.workload import WorkloadReport
from atrex.report.workload_html import render_workload_html
from atrex.report.workload_markdown import render_workload_markdown
from atrex.report.workload_terminal import render_workload_terminal
from atrex.runs import Run

AnyReport = RunReport | WorkloadReport


def terminal(report: AnyReport) -> RenderableType:
    """For a terminal."""
    return render_terminal(report) if isinstance(report, RunReport) else render_workload_terminal(report)


def markdown(report: AnyReport) -> str:
    """As markdown."""
    return render_markdown(report) if isinstance(report, RunReport) else render_workload_markdown(report)


def html(report: AnyReport) -> str:
    """As one HTML page."""
    return render_html(report) if isinstance(report, RunReport) else render_workload_html(report)


def save(run: Run, report: AnyReport) -> None:
    """Write all forms into a run's directory. Raises EnvironmentProblem if the disk refuses."""
    run.save_report("json", report.model_dump_json(indent=2))
    run.save_report("md", markdown(report))
    run.save_report("html", html(report))
