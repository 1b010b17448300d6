"""`atrex optimize`: the main job, from an operator's name to one accepted kernel and its report."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from agent.agents import AgentOptions, Opened, agent_of, open_agent
from agent.events import AnyEvent
from agent.history import events
from agent.job import Job, dsl_of
from agent.task import Task
from atrex.commands.common import (
    DeviceOption,
    choose_cases,
    choose_device,
    console_for_output,
    parse_budget,
    print_json,
)
from atrex.dsl import cpp
from atrex.errors import RejectedError, UsageError
from atrex.judge import new_seed
from atrex.problem import resolve_operator
from atrex.provenance import provenance
from atrex.report import render
from atrex.roofline import hardware_name
from atrex.runs import Run, RunMeta, create_run, find_run, now, runs_root

DEFAULT_BUDGET = "5m"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    op: str
    device: DeviceOption = "auto"
    workload: str = "atrex-bench"
    budget: str | None = None
    steps: int | None = None
    seed: int | None = None
    dropout: bool = True
    cases: tuple[str, ...] = ()
    resume: str | None = None
    runs: Path | None = None
    agent: AgentOptions = field(default_factory=AgentOptions)


def optimize(options: Options, *, as_json: bool) -> None:
    """Search for a better kernel, measure the best one afresh, and report.

    Raises RejectedError (exit 1) if no kernel was accepted; the run and its report are kept.
    """
    console = Console(stderr=True)
    run, agent = _open_run(options)
    console.print(f"run {run.path}")
    report = Job(run, _task(run, options), agent, console).execute()
    if as_json:
        print_json(report)
    else:
        console_for_output().print(render.terminal(report))
    if not report.accepted:
        raise RejectedError(f"no kernel for {report.op} was accepted; see {run.path}")


def _open_run(options: Options) -> tuple[Run, Opened]:
    """A new run, or the one to resume, whose operator, device, seed and agent stay what they were."""
    operator = resolve_operator(options.op)
    if options.resume:
        run = find_run(options.resume, runs_root(options.runs))
        if run.meta.operator != operator:
            raise UsageError(f"run {run.name} is of {run.meta.operator}, not {operator}")
        return run, _open_agent(agent_of(run), options, float(run.meta.budget["seconds"] or 0))
    device = choose_device(options.device)
    if device == "cpu":
        cpp.compiler_version()
    seconds = parse_budget(DEFAULT_BUDGET if options.budget is None else options.budget)
    choose_cases(options.workload, operator, options.cases)  # what is wrong is said before a run is made
    agent = _open_agent(options.agent, options, seconds)
    meta = RunMeta(
        created=now(),
        command=tuple(shlex.quote(argument) for argument in ("atrex", *sys.argv[1:])),
        operator=operator,
        device=device,
        dsl=dsl_of(device),
        seed=new_seed() if options.seed is None else options.seed,
        budget={
            "seconds": seconds,
            "steps": options.steps,
            "dropout": options.dropout,
            "workload": options.workload,
            "cases": ",".join(options.cases),
        },
        agent=options.agent.scalars(),
        provenance=provenance(hardware_name(device), device),
    )
    return create_run(runs_root(options.runs), meta), agent


def _open_agent(asked: AgentOptions, options: Options, seconds: float) -> Opened:
    answers = tuple[AnyEvent, ...]()
    if asked.checked().replay:
        source = find_run(asked.replay, runs_root(options.runs))
        answers = events(source.ledger)
    return open_agent(asked, seconds, answers)


def _task(run: Run, options: Options) -> Task:
    """What a run is to do: as it was asked for, but for a budget that this session names."""
    asked, agent = run.meta.budget, agent_of(run)
    names = tuple(name for name in str(asked.get("cases") or "").split(",") if name)
    seconds = float(asked["seconds"] or 0) if options.budget is None else parse_budget(options.budget)
    steps = asked.get("steps") if options.steps is None else options.steps
    return Task(
        cases=choose_cases(str(asked["workload"]), run.meta.operator, names),
        seconds=seconds,
        steps=None if steps is None else int(steps),
        tokens=agent.tokens,
        dollars=agent.dollars,
        dropout=bool(asked["dropout"]) and options.dropout,
    )
