"""One search for one kernel: everything between opening a run's ledger and writing its report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from agent import final
from agent.agents import NoKnowledge, Opened
from agent.dropout import DropoutPolicy
from agent.events import AnyEvent, Event, Finished, Judged, RunStarted, Settled
from agent.history import EVENT_ENTRY, JUDGEMENT_ENTRY, JudgementRecord, records
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
from agent.task import Task
from agent.workspace.account import Account
from atrex.candidate import Candidate
from atrex.commands.common import choose_device, speaker
from atrex.errors import AtrexError, RejectedError
from atrex.judge import Engine
from atrex.ledger import Ledger
from atrex.measure import protocol_for
from atrex.problem import Problem, load_problem
from atrex.records import Device, Dsl, Judgement, Record
from atrex.report import RunReport, render
from atrex.roofline import detect
from atrex.runs import Run


def dsl_of(device: Device) -> Dsl:
    """The language of kernels that a search on a device works in."""
    return "triton" if device == "cuda" else "cpp"


class Job:
    """One execution of a run: everything between opening the ledger and writing the report."""

    def __init__(self, run: Run, task: Task, agent: Opened, console: Console) -> None:
        self.run = run
        self.task = task
        self.agent = agent
        self.console = console
        self.started = time.monotonic()
        self.elapsed = 0.0  # seconds of all sessions when the search ended
        self.device: Device = choose_device(run.meta.device)
        self.problem: Problem = load_problem(run.meta.operator)
        self.cases = task.cases
        self.say = speaker(console)
        self.judgements: dict[str, Judgement] = {}
        self.events: list[Event] = []  # of the search, earlier sessions included
        self.learned = 0  # how many of them the knowledge base has evidence of
        self.failure: AtrexError | None = None
        """What ended the search, if its proposer failed; the report is of what there is."""

    def execute(self) -> RunReport:
        """Search, then measure the champion in fresh processes, and save the reports."""
        calibration = calibration_of(self.device, self.say)
        hardware = detect(self.device)
        with Ledger(self.run.ledger, hardware.name) as ledger, Engine(self.device) as engine:
            for damage in ledger.damaged:
                speaker(self.console, "yellow")(str(damage))
            rules = protocol_for(self.device, quick=True)
            lab = Instrument(engine, self.problem, hardware, calibration, rules, self._save)
            try:
                search = self._search(lab, ledger)
                state = self._run(search)
                learned = [event for event in self.events[self.learned :] if isinstance(event, Settled)]
                record_evidence(state, learned, self.run, hardware.name)
                report = self._conclude(state, lab, ledger)
            finally:
                lab.close()
        render.save(self.run, report)
        return report

    def _run(self, search: Search) -> SearchState:
        try:
            state = search.run()
        except TimingFault as fault:  # the search handles those of its proposals
            raise RejectedError(f"what the search starts from cannot be timed: {fault}") from None
        self.elapsed = search.journal.elapsed
        if search.failure:
            self.failure = search.failure
            self.say(f"the search ends: {search.failure}")
        return state

    def _search(self, lab: Instrument, ledger: Ledger) -> Search:
        retriever = (
            Retriever(self.problem.operator, dsl_of(self.device), self.device)
            if self.agent.options.knowledge
            else NoKnowledge()
        )
        for notice in retriever.notices:
            speaker(self.console, "yellow")(notice)
        recorded = self._recorded()
        self.events += recorded
        # A session that came to its end has written what it learned; one that was killed has not.
        ends = [number for number, event in enumerate(recorded, 1) if isinstance(event, Finished)]
        self.learned = ends[-1] if ends else 0
        start, judged_seconds = self._start(lab, ledger, retriever.knowledge(), recorded)
        cases = tuple(self.problem.with_dims(case) for case in self.cases)
        brief = Brief(self.problem, cases, self.device, dsl_of(self.device), lab.hardware, lab.calibration)
        budget = Budget(self.task.seconds, self.task.steps, final.reserve(self.device))
        search: Search | None = None

        def left() -> float:
            assert search is not None
            return budget.end(search.state.run.elapsed) - search.journal.elapsed

        proposer = self.agent.proposer(brief, self.run, self.task, self.say, left)
        search = Search(
            lab,
            proposer,
            retriever,
            RunStarted(
                operator=self.problem.operator,
                seed=self.run.meta.seed,
                proposer=proposer.name,
                start=start,
                judged_seconds=judged_seconds,
                cases=cases,
                buckets=self.problem.spec.buckets,
                dropout=DropoutPolicy(enabled=self.task.dropout),
            ),
            budget=budget,
            record=self._recorder(ledger),
            recorded=recorded,
            profile=lab.bottlenecks if self.agent.options.agent != "search" else None,  # the tuner reads none
            progress=self.say,
            clock=self._clock,
            began=-Account.of(self.run).unrecorded(recorded),  # what a tool took before it was killed
        )
        return search

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
    ) -> tuple[Candidate, float | None]:
        """What has to be beaten: the first reference kernel that all gates accept, else eager PyTorch.

        And the seconds of the gates; None for eager PyTorch, which meets none.
        """
        if recorded and isinstance(recorded[0], RunStarted):
            return recorded[0].start, recorded[0].judged_seconds
        for kernel in knowledge.kernels:
            candidate = kernel.candidate(self.problem.operator)
            judgement = self.judgements.get(candidate.id)  # by a session that was killed before it searched
            if judgement is None:
                judgement = lab.judge(candidate, level="full", cases=self.cases)
                ledger.append(JUDGEMENT_ENTRY, record := JudgementRecord(judgement=judgement))
                self._keep(record)
            if judgement.accepted:
                self.say(f"starting from {kernel.name}: all gates passed")
                return candidate, judgement.seconds
            self.say(f"{kernel.name} is not accepted: {judgement.objection}")
        return eager(self.problem.spec), None

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
        found = final.Findings()
        if judgement is not None and judgement.accepted:
            self.run.save_best(champion.source)
        if judgement is not None and judgement.accepted and self.task.measured:
            left = max(20.0, self.task.seconds - self.elapsed)
            self.say(f"measuring {self.run.best} on {len(self.cases)} cases in fresh processes")
            found = final.measure(lab, champion, self.cases, left, self.run.meta.seed, self.console)
            for result in found.results:
                ledger.append("result", result)
        if found.doubt:  # it stays among the run's kernels
            self.run.best.unlink()
        return final.report(
            self.run,
            self.problem,
            state,
            self.events,
            self.judgements,
            self.cases,
            found,
            self._clock(),
        )
