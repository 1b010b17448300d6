"""The loop of a benchmark: operator by operator, case by case, each result in the ledger before the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from agent.bench_agents import Entrants, stamped
from agent.bench_book import Book
from agent.bench_lab import BenchLab, Care, Job, NotTimed, held_in_sample
from agent.bench_plan import OperatorPlan
from agent.lab import Unanswered
from agent.proposers import baselines
from atrex.candidate import Candidate
from atrex.errors import AtrexError
from atrex.fallback.static import analyse_text
from atrex.gates.context import Level
from atrex.measure import Timing
from atrex.problem import load_problem
from atrex.records import Case, FaultKind, Judgement, Result, Status
from atrex.report.workload import Entrant, Outcome
from atrex.score import weighted_mean

NOT_REACHED = "not reached within the budget"
NOT_BELIEVED = "not believed: wrong on {}"
GIVEN_UP = "not tried: {} cases of this operator before it took too long"
_TIMEOUTS = 2  # of one operator; each has cost as much as a hundred other cases
Say = Callable[[str], None]


@dataclass(slots=True)
class Findings:
    """What a report is made of besides the cases."""

    results: list[Result] = field(default_factory=list)
    entrants: list[Entrant] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)  # by case id
    failure: AtrexError | None = None  # what ended the benchmark early


@dataclass(slots=True)
class Loop:
    """One pass over a plan. `progress` gets the line that changes, `say` what stays."""

    lab: BenchLab
    agent: Entrants
    book: Book
    seed: int
    level: Level = "full"
    beside_eager: bool = False
    deadline: float | None = None  # on `clock`; None: no limit
    clock: Callable[[], float] = time.monotonic
    save: Callable[[Candidate], object] = lambda kernel: None
    say: Say = lambda line: None
    progress: Say = lambda line: None
    found: Findings = field(default_factory=Findings)
    _timeouts: int = 0
    _done: int = 0
    _total: int = 0

    def run(self, plans: Sequence[OperatorPlan]) -> Findings:
        """Measure what is not in the book yet, until the deadline."""
        self._total = sum(len(plan.cases) for plan in plans)
        if self.agent.compiles:
            self._warm(plans)
        for number, plan in enumerate(plans):
            started = self.clock()
            try:
                self._operator(plan)
            except Unanswered as failed:
                self.found.failure = failed.error
                for left in plans[number:]:
                    self._reasons(left.cases, f"not reached: {failed}")
                break
            finally:
                self.lab.release(plan.operator)
            self._done += len(plan.cases)
            self.say(self._summary(plan, self.clock() - started))
        return self.found

    def _warm(self, plans: Sequence[OperatorPlan]) -> None:
        """Compile what the open cases need, before anything is timed: a busy machine spoils timings."""
        jobs = list[Job]()
        for plan in plans:
            kernel = self.agent.kernel(plan.operator) if plan.problem else ""
            if isinstance(kernel, Candidate):
                known = self.book.results
                left = [case for case in plan.cases if (kernel.id, plan.operator, case.id) not in known]
                jobs += [(kernel, left)] if left else []
        if jobs and not self._late():
            started = self.clock()
            self.progress(f"compiling for {len(jobs)} operators")
            self.lab.warm(jobs, self._late)
            self.say(f"compiled for {len(jobs)} operators in {self.clock() - started:.0f} s")

    def _operator(self, plan: OperatorPlan) -> None:
        kernel = self.agent.kernel(plan.operator) if plan.problem else "no problem of that name under bench/"
        if isinstance(kernel, str):
            self._absent(plan, kernel)
            return
        self.save(kernel)
        judgement = self._judgement(kernel, plan) if self.agent.judged else None
        if self.agent.judged and judgement is None:
            self._reasons(plan.cases, NOT_REACHED)
            return
        entrant = _entrant(kernel, judgement)
        if self.agent.judged:
            read = analyse_text(kernel.source, f"{kernel.operator}.py", kernel.operator)
            spent = self.agent.spent.get(kernel.operator)
            entrant = entrant.model_copy(update={"fallback": read.verdict, "spent": spent})
        self.found.entrants.append(entrant)
        if entrant.outcome == "undecided":  # the harness's fault is no verdict: a later session may decide
            self._reasons(plan.cases, entrant.note)
        elif entrant.outcome == "rejected":
            for case in plan.cases:
                self._settle(kernel, case, partial(self._refuse, kernel, entrant.note), anyway=True)
        else:
            self._measure(kernel, plan)

    def _absent(self, plan: OperatorPlan, why: str) -> None:
        self.found.entrants.append(Entrant(operator=plan.operator, outcome="absent", note=why))
        self._reasons(plan.cases, why)

    def _reasons(self, cases: Sequence[Case], why: str) -> None:
        self.found.reasons |= {case.id: why for case in cases}

    def _judgement(self, kernel: Candidate, plan: OperatorPlan) -> Judgement | None:
        """The judgement on record at this level, or a fresh one; None: no time is left for it."""
        known = self.book.judgements.get(kernel.id)
        if known is not None and known.level == self.level and not _undecided(known):
            return known
        if self.level == "full" and (made := self.agent.judgement(kernel.id)):
            self.book.judge(made)
            return made
        if self._late():
            return None
        self.progress(f"{plan.operator}: gates")
        judgement = self.lab.judge(kernel, plan.cases, self.level, self.seed)
        self.book.judge(judgement)
        return judgement

    def _measure(self, kernel: Candidate, plan: OperatorPlan) -> None:
        self._timeouts = 0
        everyone = {case.id for case in plan.cases}
        held = {"never": set[str](), "sample": held_in_sample(plan.cases), "always": everyone}[
            self.agent.hold
        ]
        doubt = ""
        # Those that are looked at come first: if one is wrong, none of the operator's others is believed.
        for number, case in enumerate(sorted(plan.cases, key=lambda case: case.id not in held), 1):
            self.progress(
                f"{plan.operator} {number}/{len(plan.cases)}, case {self._done + number} of {self._total}"
            )
            care = Care(held=case.id in held, stranger=self.agent.judged)
            find = partial(self._refuse, kernel, doubt) if doubt else partial(self._time, kernel, care)
            accepted = self._settle(kernel, case, find, anyway=bool(doubt))
            if not accepted and not doubt:
                doubt = NOT_BELIEVED.format(case.id)
                update = {"outcome": "rejected", "note": self.found.reasons[case.id]}
                self.found.entrants[-1] = self.found.entrants[-1].model_copy(update=update)
                self._disown(kernel, doubt)

    def _disown(self, kernel: Candidate, why: str) -> None:
        """Take back what was measured of a kernel that has turned out to be wrong."""
        for number, result in enumerate(self.found.results):
            if result.candidate == kernel.id and result.operator == kernel.operator and result.accepted:
                refused = result.model_copy(update={"accepted": False, "latency": None, "vs_eager": None})
                self.book.add(refused, why)
                self.found.results[number] = refused
                self.found.reasons[result.case] = why

    def _settle(
        self,
        kernel: Candidate,
        case: Case,
        find: Callable[[Case], tuple[Result, str]],
        *,
        anyway: bool = False,
    ) -> bool:
        """One case's result: from the book, or found now and put there, or left open when time is up.

        `anyway`: it takes no time. False: it is there, and a rejection.
        """
        key = (kernel.id, case.operator, case.id)
        if key not in self.book.results:
            if self._late() and not anyway:
                self.found.reasons[case.id] = NOT_REACHED
                return True
            self.book.add(*find(case))
        result = self.book.results[key]
        self.found.results.append(result)
        if result.latency is None:
            self.found.reasons[case.id] = self.book.notes.get(key, "no reason on record")
        return result.accepted

    def _refuse(self, kernel: Candidate, why: str, case: Case) -> tuple[Result, str]:
        """The result of a rejected kernel: no speed."""
        return self._result(kernel, case, False, ()), why

    def _time(self, kernel: Candidate, care: Care, case: Case) -> tuple[Result, str]:
        """A timing, or why there is none.

        A second attempt, in fresh processes, is made without eager beside it if that was at fault, and with
        one set of inputs if memory ran out: a busy machine can make an honest claim of time look late. What
        took too long is not tried again, and after some of that the operator's other cases are given up. What
        was wrong is a rejection.
        """
        if self._timeouts >= _TIMEOUTS:
            return self._result(kernel, case, True, ()), GIVEN_UP.format(_TIMEOUTS)
        contestants = [kernel, *self._rivals(kernel)]
        try:
            return self._result(kernel, case, True, self.lab.time(contestants, case, care)), ""
        except NotTimed as first:
            if first.candidate and first.candidate != kernel.id:
                contestants = [kernel]
            elif first.kind in (FaultKind.TIMEOUT, FaultKind.WRONG):
                self._timeouts += first.kind is FaultKind.TIMEOUT
                return self._without(kernel, case, first)
            care = replace(care, lean=first.kind is FaultKind.OUT_OF_MEMORY)
        try:
            return self._result(kernel, case, True, self.lab.time(contestants, case, care)), ""
        except NotTimed as second:
            return self._without(kernel, case, second)

    def _without(self, kernel: Candidate, case: Case, why: NotTimed) -> tuple[Result, str]:
        """The result of a case that could not be timed, or was wrong."""
        wrong = why.kind is FaultKind.WRONG and why.candidate in ("", kernel.id)
        return self._result(kernel, case, not wrong, ()), str(why)

    def _rivals(self, kernel: Candidate) -> list[Candidate]:
        """Eager PyTorch where it is wanted; it does not run beside itself."""
        if not self.beside_eager:
            return []
        eager = stamped(baselines.eager(load_problem(kernel.operator).spec))
        return [eager] if eager.id != kernel.id else []

    def _result(self, kernel: Candidate, case: Case, accepted: bool, timings: Sequence[Timing]) -> Result:
        return Result(
            candidate=kernel.id,
            operator=case.operator,
            case=case.id,
            policy=self.book.policy,
            accepted=accepted,
            latency=timings[0].latency if timings else None,
            bound=self.lab.bound(case),
            vs_eager=timings[0].ratio_to(timings[1]) if len(timings) > 1 else None,
        )

    def _late(self) -> bool:
        return self.deadline is not None and self.clock() >= self.deadline

    def _summary(self, plan: OperatorPlan, seconds: float) -> str:
        results = [one for one in self.found.results if one.operator == plan.operator]
        reached = {result.case: result.efficiency for result in results}
        values = [reached.get(case.id, 0.0) for case in plan.cases]
        mean = weighted_mean(values, [case.weight for case in plan.cases])
        measured = sum(result.latency is not None for result in results)
        return (
            f"{plan.operator:<30} {measured:3}/{len(plan.cases):<3} measured  S {mean:.3f}  {seconds:6.1f} s"
        )


def _entrant(kernel: Candidate, judgement: Judgement | None) -> Entrant:
    """How a kernel stands: a baseline needs no judgement."""
    if judgement is None:
        return Entrant(operator=kernel.operator, outcome="baseline", candidate=kernel.id)
    outcome: Outcome = "undecided" if _undecided(judgement) else "rejected"
    if judgement.accepted:
        outcome = "accepted"
    return Entrant(operator=kernel.operator, outcome=outcome, candidate=kernel.id, note=judgement.objection)


def _undecided(judgement: Judgement) -> bool:
    """Nothing is held against the candidate, but a gate of ours could not judge it."""
    statuses = {verdict.status for verdict in judgement.verdicts}
    return bool(statuses & {Status.ERROR, Status.INCONCLUSIVE}) and Status.FAIL not in statuses
