"""An agent that searches for each operator's kernel when `atrex bench` comes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from agent.agents import AgentOptions, Opened
from agent.bench_agents import Hold
from agent.bench_plan import OperatorPlan
from agent.events import AnyEvent, Event, Finished
from agent.history import events
from agent.job import Job, dsl_of
from agent.lab import Unanswered
from agent.task import Task
from atrex.candidate import Candidate
from atrex.errors import RejectedError
from atrex.records import Judgement
from atrex.report import RunReport, load_report
from atrex.runs import METADATA, Run, RunMeta, create_run, now, open_run
from atrex.spending import Spending


def _ended(last: Sequence[AnyEvent | Event]) -> bool:
    """Whether the last event says that a search came to its end by itself."""
    return any(isinstance(event, Finished) and event.reason in ("exhausted", "budget") for event in last)


@dataclass(slots=True)
class SearchingAgent:
    """Implements `agent.bench_agents.Entrants`; every search is a run of its own below the benchmark's.

    Tokens and dollars are the whole benchmark's, so an operator gets what those before it have left.
    """

    opened: Opened
    bench: Run
    plans: Mapping[str, OperatorPlan]
    seconds: float  # of one operator's search
    console: Console
    spent: dict[str, Spending] = field(default_factory=dict)
    judgements: dict[str, Judgement] = field(default_factory=dict)

    strangers: tuple[str, ...] = ()
    judged: bool = True
    compiles: bool = False
    hold: Hold = "always"

    @property
    def options(self) -> AgentOptions:
        """What was asked for."""
        return self.opened.options

    @property
    def kind(self) -> str:
        """The agent's name on the command line."""
        return self.options.agent

    @property
    def name(self) -> str:
        """The agent and its model."""
        return " ".join(filter(None, (self.options.agent, self.options.model)))

    @property
    def total(self) -> Spending:
        """On all operators so far."""
        return sum(self.spent.values(), Spending())

    def kernel(self, operator: str) -> Candidate | str:
        """The champion of a search for it, which goes on where it was killed; or why there is none."""
        plan = self.plans[operator]
        run = self._run(operator)
        try:
            report = self._searched(run, self._task(plan))
        except RejectedError as error:
            return str(error)
        if report.spent:
            self.spent[operator] = report.spent
        if not report.accepted or report.judgement is None:
            return f"the search found no kernel that is accepted; see {run.path}"
        self.judgements[report.judgement.candidate] = report.judgement
        return Candidate(operator, report.dsl, run.best.read_text(encoding="utf-8"))

    def _task(self, plan: OperatorPlan) -> Task:
        spent, tokens, dollars = self.total, self.options.tokens, self.options.dollars
        if tokens is not None:
            tokens = max(0, tokens - spent.tokens)
        if dollars is not None:  # an unknown cost may have been all of it
            dollars = 0.0 if spent.dollars is None else max(0.0, dollars - spent.dollars)
        return Task(plan.cases, self.seconds, tokens=tokens, dollars=dollars, measured=False)

    def _searched(self, run: Run, task: Task) -> RunReport:
        """The report of a search, which is not made again if it came to its end.

        Raises Unanswered, and KeyboardInterrupt if the search was interrupted: then so is the benchmark.
        """
        last = events(run.ledger)[-1:] if run.ledger.exists() else ()
        if _ended(last) and run.report().exists():
            return load_report(run.report())
        job = Job(run, task, self.opened, self.console)
        report = job.execute()
        if job.failure:
            raise Unanswered(job.failure)
        if not _ended(job.events[-1:]):
            raise KeyboardInterrupt
        return report

    def judgement(self, candidate: str) -> Judgement | None:
        """The full judgement of a search's champion."""
        return self.judgements.get(candidate)

    def _run(self, operator: str) -> Run:
        directory: Path = self.bench.path / "searches"
        for known in sorted(directory.glob(f"*/{METADATA}")):  # a kill can leave a directory without
            run = open_run(known.parent)
            if run.meta.operator == operator:
                return run
        meta = RunMeta(
            created=now(),
            command=self.bench.meta.command,
            operator=operator,
            device=self.bench.meta.device,
            dsl=dsl_of(self.bench.meta.device),
            seed=self.bench.meta.seed,
            agent=self.options.scalars(),
            provenance=self.bench.meta.provenance,
        )
        return create_run(directory, meta)
