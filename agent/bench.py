"""`atrex bench`: an agent or a baseline over the workload, and the weighted table.

Exit 0 once the benchmark has run, whatever its kernels were worth: a rejected one is a 0 in the table, not a
failure of the command (`atrex verify` is the command that judges one file). 2: usage; 3: environment.
"""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from pydantic import ValidationError
from rich.console import Console
from rich.text import Text

from agent.agents import AgentOptions, Opened, agent_of, keep, open_agent
from agent.bench_agents import Agent, parse_agent
from agent.bench_book import Book, bench_policy
from agent.bench_lab import MachineLab
from agent.bench_loop import Findings, Loop
from agent.bench_plan import OperatorPlan, Selection, make_plan, parse_ops
from agent.bench_search import SearchingAgent
from agent.machine import calibration_of
from atrex.commands.common import (
    DeviceOption,
    choose_device,
    console_for_output,
    console_for_progress,
    parse_budget,
    print_json,
    speaker,
)
from atrex.commands.options import AgentName
from atrex.errors import AtrexError, UsageError
from atrex.gates.context import Level
from atrex.judge import Engine, Timeouts, new_seed
from atrex.ledger import Ledger
from atrex.problem import load_problem
from atrex.provenance import provenance
from atrex.records import Case, Device, Phase, Record
from atrex.report import render
from atrex.report.workload import Scale, WorkloadReport
from atrex.roofline import Hardware, detect, hardware_name, plain_name
from atrex.runs import METADATA, Run, RunMeta, create_run, find_run, now, runs_root
from atrex.score import score_cases
from atrex.spending import Spending

PATIENCE = Timeouts(load=90.0, call=90.0, round=60.0)  # seconds; a first call compiles
PER_OP = "5m"
BENCH = "bench-"  # with the agent it stands in a run where an optimisation has its operator


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for; with `resume` all but budget and runs come from the run."""

    agent: str | None = None
    ops: str | None = None
    selection: Selection = field(default_factory=Selection)
    device: DeviceOption = "auto"
    seed: int | None = None
    budget: str | None = None
    level: Level = "full"
    beside_eager: bool | None = None
    runs: Path | None = None
    resume: str | None = None
    per_op: str | None = None
    models: AgentOptions = field(default_factory=AgentOptions)


class Asked(Record):
    """What a run is to do, as its run.json keeps it."""

    agent: str
    workload: str
    ops: str  # canonical names with commas between; empty: all
    cases: int | None
    phase: Phase | None
    scale: Scale
    gates: Level
    beside_eager: bool
    per_op: float | None = None  # seconds of each operator's search


def bench(options: Options, *, as_json: bool, as_html: bool = False) -> None:
    """Run, save the reports in the run's directory, and print one of them.

    Raises what ended the benchmark early, if its model failed: what was found until then is reported.
    """
    console = console_for_progress()
    seconds = None if options.budget is None else parse_budget(options.budget)
    run, opened = _resumed(options) if options.resume else _created(options)
    console.print(f"run {run.path}")
    job = Job(run, opened, seconds, console)
    report = job.execute()
    if as_json:
        print_json(report)
    elif as_html:
        print(render.html(report))
    else:
        console_for_output().print(render.terminal(report))
    if job.failure:
        raise job.failure


def _created(options: Options) -> tuple[Run, Opened | None]:
    """A new run; what is wrong with the request is said before there is one. Raises UsageError."""
    if options.agent is None:
        known = "eager, compile, library, replay:DIR, search, claude or gpt"
        raise UsageError(f"--agent is missing: {known} (or --resume RUN)")
    searching = options.agent in get_args(AgentName)
    if options.per_op and not searching:
        raise UsageError(f"--budget-per-op is the time of a search, and --agent {options.agent} makes none")
    models = options.models.checked("" if searching else options.agent)
    per_op = parse_budget(options.per_op or PER_OP) if searching else None
    opened = open_agent(models, per_op) if per_op else None
    agent = None if searching else parse_agent(options.agent)
    asked = options.selection
    ops = parse_ops(options.ops)
    make_plan(Selection(asked.workload, ops, asked.cases, asked.phase, asked.scale))
    device = choose_device(options.device)
    usual = agent is None or agent.beside_eager
    beside = usual if options.beside_eager is None else options.beside_eager
    meta = RunMeta(
        created=now(),
        command=tuple(shlex.quote(argument) for argument in ("atrex", *sys.argv[1:])),
        operator=BENCH + options.agent.partition(":")[0],
        device=device,
        seed=new_seed() if options.seed is None else options.seed,
        budget=Asked(
            agent=f"replay:{agent.directory.resolve()}" if agent and agent.directory else options.agent,
            workload=asked.workload,
            ops=",".join(ops),
            cases=asked.cases,
            phase=asked.phase,
            scale=asked.scale,
            gates=options.level,
            beside_eager=beside and options.agent != "eager",
            per_op=per_op,
        ).model_dump(),
        agent=options.models.scalars() if searching else {},
        provenance=provenance(hardware_name(device), device),
    )
    return create_run(runs_root(options.runs), meta), opened


def _resumed(options: Options) -> tuple[Run, Opened | None]:
    """The run to continue. Raises UsageError if it is none of these, or if another one was asked for."""
    run = find_run(str(options.resume), runs_root(options.runs))
    if not run.meta.operator.startswith(BENCH):
        raise UsageError(f"run {run.name} is no benchmark; continue it with `atrex optimize --resume`")
    asked = _asked(run)
    if options.agent is not None and options.agent.partition(":")[0] != asked.agent.partition(":")[0]:
        raise UsageError(f"run {run.name} is of {asked.agent}, not {options.agent}")
    _keep(options, run, asked)
    if not asked.per_op:
        options.models.checked(asked.agent)
        return run, None
    given = options.models.model_copy(update={"agent": agent_of(run).agent})
    return run, open_agent(agent_of(run).resumed(given), asked.per_op)


def _keep(options: Options, run: Run, asked: Asked) -> None:
    """Raises UsageError if an option asks for something else than what the run is."""
    if options.ops is not None:
        keep("--ops", ",".join(parse_ops(options.ops)), asked.ops)
    for name in ("workload", "cases", "phase", "scale"):
        usual = getattr(Selection(), name)
        keep(f"--{name}", getattr(options.selection, name), getattr(asked, name), usual)
    keep("--device", options.device, run.meta.device, usual="auto")
    keep("--seed", options.seed, run.meta.seed)
    keep("--gates", options.level, asked.gates, usual=Options().level)
    keep("--vs-eager", options.beside_eager, asked.beside_eager)
    if options.per_op is not None:
        keep("--budget-per-op", parse_budget(options.per_op), asked.per_op)


def _asked(run: Run) -> Asked:
    """What a run is to do. Raises UsageError where its run.json does not say."""
    try:
        return Asked.model_validate(run.meta.budget)
    except ValidationError as error:
        field = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise UsageError(f"{run.path / METADATA}: field budget.{field}: not readable") from None


class Job:
    """One execution of a run: everything between opening the ledger and writing the report."""

    def __init__(self, run: Run, opened: Opened | None, seconds: float | None, console: Console) -> None:
        self.run = run
        self.console = console
        self.failure: AtrexError | None = None
        self.started = time.monotonic()
        self.deadline = None if seconds is None else self.started + seconds
        self.device: Device = choose_device(run.meta.device)
        self.asked = asked = _asked(run)
        ops = tuple(name for name in asked.ops.split(",") if name)
        self.selection = Selection(asked.workload, ops, asked.cases, asked.phase, asked.scale)
        self.plans: tuple[OperatorPlan, ...] = make_plan(self.selection)
        self.agent: Agent | SearchingAgent = (
            SearchingAgent(opened, run, {plan.operator: plan for plan in self.plans}, asked.per_op, console)
            if opened and asked.per_op
            else parse_agent(asked.agent)
        )

    def execute(self) -> WorkloadReport:
        """Measure what is not yet in the ledger, and save the reports."""
        calibration = calibration_of(self.device, self.console.print)
        hardware = detect(self.device)
        engine = Engine(self.device, timeouts=None if self.agent.judged else PATIENCE)
        with engine, Ledger(self.run.ledger, hardware.name) as ledger:
            for damage in ledger.damaged:
                speaker(self.console, "yellow")(str(damage))
            book = Book(ledger, bench_policy(self.selection.scale))
            if known := book.load():
                self.console.print(f"{known} results are in the ledger already")
            lab = MachineLab(engine, hardware, calibration)
            found = self._loop(lab, book)
        self.failure = found.failure
        report = self._report(found, hardware)
        render.save(self.run, report)
        return report

    def _loop(self, lab: MachineLab, book: Book) -> Findings:
        with self.console.status("starting") as status:
            loop = Loop(
                lab,
                self.agent,
                book,
                self.run.meta.seed,
                level=self.asked.gates,
                beside_eager=self.asked.beside_eager,
                deadline=self.deadline,
                save=lambda kernel: self.run.save_kernel(kernel.id, kernel.source),
                say=speaker(self.console),
                progress=lambda line: status.update(Text(f"{line}, {self._clock():.0f} s")),
            )
            return loop.run(self.plans)

    def _clock(self) -> float:
        return time.monotonic() - self.started

    def _report(self, found: Findings, hardware: Hardware) -> WorkloadReport:
        cases = [self._as_scored(case) for plan in self.plans for case in plan.cases]
        costs = {
            case.id: problem.cost(problem.shape(case))
            for plan in self.plans
            if plan.problem
            for problem in [load_problem(plan.operator)]
            for case in plan.cases
        }
        return WorkloadReport(
            agent=self.agent.name,
            device=self.device,
            workload=self.selection.workload,
            scale=self.selection.scale,
            phase=self.selection.phase,
            cases_per_operator=self.selection.cases,
            run=str(self.run.path),
            seconds=round(self._clock(), 1),
            cases=score_cases(cases, found.results, costs),
            entrants=tuple(found.entrants),
            reasons=found.reasons,
            accelerators=_names(hardware, cases),
            provenance=self.run.meta.provenance,
            command=" ".join(self.run.meta.command),
            spent=sum(self.agent.spent.values(), Spending()) if self.agent.spent else None,
            notes=tuple(f"{name} is named after no operator: not run" for name in self.agent.strangers),
        )

    def _as_scored(self, case: Case) -> Case:
        """Without its production latency where its shape is not production's."""
        return case.model_copy(update={"production_us": {}}) if self.selection.scale == "small" else case


def _names(hardware: Hardware, cases: Sequence[Case]) -> tuple[str, ...]:
    """The names that workloads use for this machine."""
    ours = {plain_name(name) for name in (hardware.name, *hardware.aliases)}
    known = {name for case in cases for name in case.production_us}
    return tuple(sorted(name for name in known if plain_name(name) in ours))
