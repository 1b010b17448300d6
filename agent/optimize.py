"""`atrex optimize`: the main job, from an operator's name to one accepted kernel and its report."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path

from agent.agents import AgentOptions, Opened, agent_of, keep, open_agent
from agent.events import AnyEvent
from agent.history import events
from agent.job import Job, dsl_of
from agent.task import Task
from atrex.commands.common import (
    DeviceOption,
    choose_cases,
    choose_device,
    console_for_output,
    console_for_progress,
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
from atrex.runs import Run, RunMeta, create_run, find_run, now, open_run, runs_root

DEFAULT_BUDGET = "5m"
DEFAULT_WORKLOAD = "atrex-bench"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for."""

    op: str
    device: DeviceOption = "auto"
    workload: str = DEFAULT_WORKLOAD
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

    Raises RejectedError (exit 1) if no kernel was accepted, and what ended the search if its model failed;
    the run and its report are kept.
    """
    console = console_for_progress()
    run, agent = _open_run(options)
    console.print(f"run {run.path}")
    job = Job(run, _task(run, options, agent.options), agent, console)
    report = job.execute()
    if as_json:
        print_json(report)
    else:
        console_for_output().print(render.terminal(report))
    if job.failure:
        raise job.failure
    if report.doubt:
        raise RejectedError(f"the kernel for {report.op} is not believed: {report.doubt}; see {run.path}")
    if not report.accepted:
        raise RejectedError(f"no kernel for {report.op} was accepted; see {run.path}")


def _open_run(options: Options) -> tuple[Run, Opened]:
    """A new run, or the one to resume, whose operator, device, seed and agent stay what they were."""
    operator = resolve_operator(options.op)
    if options.resume:
        return _resumed(find_run(options.resume, runs_root(options.runs)), operator, options)
    device = choose_device(options.device)
    if device == "cpu":
        cpp.compiler_version()
    seconds = parse_budget(DEFAULT_BUDGET if options.budget is None else options.budget)
    choose_cases(options.workload, operator, options.cases)  # what is wrong is said before a run is made
    chosen = _with_replay(options.agent, operator, options)
    agent = _open_agent(chosen, seconds)
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
        agent=chosen.scalars(),
        provenance=provenance(hardware_name(device), device),
    )
    return create_run(runs_root(options.runs), meta), agent


def _resumed(run: Run, operator: str, options: Options) -> tuple[Run, Opened]:
    """A run to go on with, as it was begun. Raises UsageError where something else is asked for."""
    meta, asked = run.meta, run.meta.budget
    if meta.operator != operator:
        raise UsageError(f"run {run.name} is of {meta.operator}, not {operator}")
    if "seconds" not in asked:
        raise UsageError(f"{run.path} is a part of a benchmark; continue that with `atrex bench --resume`")
    keep("--device", options.device, meta.device, usual="auto")
    keep("--seed", options.seed, meta.seed)
    keep("--case", ",".join(options.cases), asked.get("cases"), usual="")
    keep("--workload", options.workload, asked.get("workload"), usual=DEFAULT_WORKLOAD)
    keep("--dropout", "on" if options.dropout else "off", "on" if asked["dropout"] else "off", usual="on")
    began, given = agent_of(run), options.agent
    if given.replay:
        given = _with_replay(given, operator, options)
    return run, _open_agent(began.resumed(given), float(asked["seconds"] or 0))


def _with_replay(asked: AgentOptions, operator: str, options: Options) -> AgentOptions:
    """With the run to replay as an absolute path. Raises UsageError if its answers are of something else."""
    if not asked.checked().replay:
        return asked
    source = find_run(asked.replay, runs_root(options.runs))
    if source.meta.operator != operator:
        raise UsageError(f"--replay {source.name} is of {source.meta.operator}, not {operator}")
    if (author := agent_of(source).agent) != asked.agent:
        raise UsageError(f"--replay {source.name} is of --agent {author}, not {asked.agent}")
    return asked.model_copy(update={"replay": str(source.path.resolve())})


def _open_agent(asked: AgentOptions, seconds: float) -> Opened:
    answers = tuple[AnyEvent, ...]()
    if asked.checked().replay:
        answers = events(open_run(Path(asked.replay)).ledger)
    return open_agent(asked, seconds, answers)


def _task(run: Run, options: Options, agent: AgentOptions) -> Task:
    """What a run is to do: as it was asked for, but for the limits that this session names."""
    asked = run.meta.budget
    names = tuple(name for name in str(asked.get("cases") or "").split(",") if name)
    seconds = float(asked["seconds"] or 0) if options.budget is None else parse_budget(options.budget)
    steps = asked.get("steps") if options.steps is None else options.steps
    return Task(
        cases=choose_cases(str(asked["workload"]), run.meta.operator, names),
        seconds=seconds,
        steps=None if steps is None else int(steps),
        tokens=agent.tokens,
        dollars=agent.dollars,
        dropout=bool(asked["dropout"]),
    )
