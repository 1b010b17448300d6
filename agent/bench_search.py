"""An agent that searches for each operator's kernel when `atrex bench` comes to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from agent.agents import AgentOptions, Opened
from agent.bench_agents import Hold
from agent.bench_plan import OperatorPlan
from agent.job import Job, dsl_of
from agent.task import Task
from atrex.candidate import Candidate
from atrex.errors import RejectedError
from atrex.records import Judgement
from atrex.runs import Run, RunMeta, create_run, now, open_run
from atrex.spending import Spending


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
        before, tokens, dollars = self.total, self.options.tokens, self.options.dollars
        task = Task(
            cases=plan.cases,
            seconds=self.seconds,
            tokens=None if tokens is None else max(0, tokens - before.tokens),
            dollars=None if dollars is None else max(0.0, dollars - (before.dollars or 0.0)),
            measured=False,
        )
        try:
            report = Job(run, task, self.opened, self.console).execute()
        except RejectedError as error:
            return str(error)
        if report.spent:
            self.spent[operator] = report.spent
        if not report.accepted or report.judgement is None:
            return f"the search found no kernel that is accepted; see {run.path}"
        self.judgements[report.judgement.candidate] = report.judgement
        return Candidate(operator, report.dsl, run.best.read_text(encoding="utf-8"))

    def judgement(self, candidate: str) -> Judgement | None:
        """The full judgement of a search's champion."""
        return self.judgements.get(candidate)

    def _run(self, operator: str) -> Run:
        directory: Path = self.bench.path / "searches"
        for known in sorted(directory.glob("*")) if directory.is_dir() else ():
            run = open_run(known)
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
