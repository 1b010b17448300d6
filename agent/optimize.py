"""`atrex optimize`: the main job, from an operator's name to one accepted kernel and its report."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from agent import final
from agent.agents import AgentOptions, NoKnowledge, Opened, open_agent
from agent.dropout import DropoutPolicy
from agent.events import AnyEvent, Event, Judged, RunStarted, Settled
from agent.history import EVENT_ENTRY, JUDGEMENT_ENTRY, JudgementRecord, events, records
from agent.instrument import Instrument
from agent.journal import Budget
from agent.lab import Knowledge, TimingFault
from agent.learn import record_evidence
from agent.machine import calibration_of
from agent.prompts.statement import Brief
from agent.proposers.baselines import eager
from agent.retrieve import Retriever
from agent.search import Search
from agent.state import SearchState
from atrex.candidate import Candidate
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
from atrex.judge import Engine, new_seed
from atrex.ledger import Ledger
from atrex.measure import protocol_for
from atrex.problem import Problem, load_problem, resolve_operator
from atrex.provenance import provenance
from atrex.records import Case, Device, Dsl, Judgement, Record, Result
from atrex.report import RunReport, render
from atrex.roofline import detect, hardware_name
from atrex.runs import METADATA, Run, RunMeta, create_run, find_run, now, runs_root

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
    report = Job(run, options, agent, console).execute()
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
        dsl=_dsl(device),
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


def agent_of(run: Run) -> AgentOptions:
    """Who proposes in a run. Raises UsageError where its run.json does not say."""
    try:
        return AgentOptions.model_validate(run.meta.agent)
    except ValidationError as error:
        where = ".".join(str(part) for part in error.errors()[0]["loc"])
        raise UsageError(f"{run.path / METADATA}: field agent.{where}: not readable") from None


def _open_agent(asked: AgentOptions, options: Options, seconds: float) -> Opened:
    answers = tuple[AnyEvent, ...]()
    if asked.checked().replay:
        source = find_run(asked.replay, runs_root(options.runs))
        answers = events(source.ledger)
    return open_agent(asked, seconds, answers)


def _dsl(device: Device) -> Dsl:
    return "triton" if device == "cuda" else "cpp"


class Job:
    """One execution of a run: everything between opening the ledger and writing the report."""

    def __init__(self, run: Run, options: Options, agent: Opened, console: Console) -> None:
        self.run = run
        self.agent = agent
        self.console = console
        self.started = time.monotonic()
        meta = run.meta
        self.device: Device = choose_device(meta.device)
        self.problem: Problem = load_problem(meta.operator)
        asked = meta.budget
        names = tuple(name for name in str(asked.get("cases") or "").split(",") if name)
        self.cases: tuple[Case, ...] = choose_cases(str(asked["workload"]), meta.operator, names)
        seconds = parse_budget(options.budget) if options.budget is not None else float(asked["seconds"] or 0)
        steps = options.steps if options.steps is not None else asked.get("steps")
        self.seconds = seconds
        self.steps = int(steps) if steps is not None else None
        self.dropout = bool(asked["dropout"]) and options.dropout
        self.judgements: dict[str, Judgement] = {}
        self.events: list[Event] = []  # of the search, earlier sessions included

    def execute(self) -> RunReport:
        """Search, then measure the champion in fresh processes, and save the reports."""
        calibration = calibration_of(self.device, self.console.print)
        hardware = detect(self.device)
        with Ledger(self.run.ledger, hardware.name) as ledger, Engine(self.device) as engine:
            for damage in ledger.damaged:
                self.console.print(f"[yellow]{damage}[/]")
            rules = protocol_for(self.device, quick=True)
            lab = Instrument(engine, self.problem, hardware, calibration, rules, self._save)
            try:
                search = self._search(lab, ledger)
                state = self._run(search)
                report = self._conclude(state, lab, ledger)
            finally:
                lab.close()
        learned = [event for event in self.events[self.earlier :] if isinstance(event, Settled)]
        record_evidence(state, learned, self.run, hardware.name)  # earlier sessions wrote their own
        render.save(self.run, report)
        return report

    def _run(self, search: Search) -> SearchState:
        try:
            return search.run()
        except TimingFault as fault:  # the search handles those of its proposals
            raise RejectedError(f"what the search starts from cannot be timed: {fault}") from None

    def _with_dims(self, case: Case) -> Case:
        """The case with all extents of its shape: some cases state lengths or a whole shape instead."""
        return case.model_copy(update={"input": {**self.problem.shape(case).dims, **case.input}})

    def _search(self, lab: Instrument, ledger: Ledger) -> Search:
        retriever = (
            Retriever(self.problem.operator, _dsl(self.device), self.device)
            if self.agent.options.knowledge
            else NoKnowledge()
        )
        for notice in retriever.notices:
            self.console.print(f"[yellow]{notice}[/]")
        recorded = self._recorded()
        self.events += recorded
        self.earlier = len(recorded)
        start = self._start(lab, ledger, retriever.knowledge(), recorded)
        cases = tuple(self._with_dims(case) for case in self.cases)
        dsl = _dsl(self.device)
        brief = Brief(self.problem, cases, self.device, dsl, lab.hardware, lab.calibration)
        proposer = self.agent.proposer(brief, self.run.replies)
        asked = self.agent.options
        return Search(
            lab,
            proposer,
            retriever,
            RunStarted(
                operator=self.problem.operator,
                seed=self.run.meta.seed,
                proposer=proposer.name,
                start=start,
                cases=cases,
                buckets=self.problem.spec.buckets,
                dropout=DropoutPolicy(enabled=self.dropout),
            ),
            budget=Budget(
                max(0.0, self.seconds - self._clock()),
                self.steps,
                final.reserve(self.device),
                tokens=asked.tokens,
                dollars=asked.dollars,
            ),
            record=self._recorder(ledger),
            recorded=recorded,
            profile=lab.bottlenecks if asked.agent != "search" else None,  # the tuner reads none
            progress=self.console.print,
            clock=self._clock,
        )

    def _clock(self) -> float:
        """Seconds since the job began: calibration and the first judgements count too."""
        return time.monotonic() - self.started

    def _recorded(self) -> list[AnyEvent]:
        """The search's events so far; the judgements beside them are kept, too."""
        found = list[AnyEvent]()
        for record in records(self.run.ledger):
            self._keep(record)
            if isinstance(record, Event):
                found.append(record)
        return found

    def _start(
        self, lab: Instrument, ledger: Ledger, knowledge: Knowledge, recorded: Sequence[AnyEvent]
    ) -> Candidate:
        """What has to be beaten: the first reference kernel that all gates accept, else eager PyTorch."""
        if recorded and isinstance(recorded[0], RunStarted):
            return recorded[0].start
        for kernel in knowledge.kernels:
            note = f"kernel {kernel.name}"
            candidate = Candidate(self.problem.operator, kernel.dsl, kernel.source, note=note)
            judgement = lab.judge(candidate, level="full", cases=self.cases)
            ledger.append(JUDGEMENT_ENTRY, record := JudgementRecord(judgement=judgement))
            self._keep(record)
            if judgement.accepted:
                self.console.print(f"starting from {kernel.name}: all gates passed")
                return candidate
            self.console.print(f"{kernel.name} is not accepted: {judgement.objection}")
        return eager(self.problem.spec)

    def _save(self, candidate: Candidate) -> Path:
        return self.run.save_kernel(candidate.id, candidate.source)

    def _recorder(self, ledger: Ledger) -> Callable[[Event], None]:
        def record(event: Event) -> None:
            ledger.append(EVENT_ENTRY, event)
            self._keep(event)
            self.events.append(event)

        return record

    def _keep(self, record: Record) -> None:
        """Remember a judgement; a full one is never replaced by a screening."""
        if not isinstance(record, Judged | JudgementRecord):
            return
        judgement = record.judgement
        known = self.judgements.get(judgement.candidate)
        if known is None or judgement.level == "full" or known.level != "full":
            self.judgements[judgement.candidate] = judgement

    def _conclude(self, state: SearchState, lab: Instrument, ledger: Ledger) -> RunReport:
        """The champion in fresh processes against eager and compiled PyTorch, on all cases."""
        champion = state.best
        judgement = self.judgements.get(champion.id)
        results: tuple[Result, ...] = ()
        notes = tuple[str, ...]()
        if judgement is not None and judgement.accepted:
            self.run.save_best(champion.source)
            left = max(20.0, self.seconds - self._clock())
            self.console.print(f"measuring {self.run.best} on {len(self.cases)} cases in fresh processes")
            results, notes = final.measure(lab, champion, self.cases, left, self.console)
            for result in results:
                ledger.append("result", result)
        return final.report(
            self.run,
            self.problem,
            state,
            self.events,
            self.judgements,
            self.cases,
            results,
            self._clock(),
            notes,
        )
