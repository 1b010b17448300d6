"""One step of a live comparison of searches, in a process of its own: start, search, measure.

`benchmarks/live_search.py` leads operators through these steps, several of which may be under way at once.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from landscape import MOST_US, spread_cases
from turns import Turn, Turns

from agent.dropout import DropoutPolicy
from agent.events import Event, Judged, RunStarted, incumbents
from agent.instrument import FAULTS, Instrument, told
from agent.job import dsl_of
from agent.journal import Budget
from agent.lab import Level, TimingFault
from agent.machine import calibration_of
from agent.promote import PromotionPolicy, geometric_mean
from agent.proposers.random import RandomProposer
from agent.proposers.search import SearchProposer
from agent.retrieve import Retriever
from agent.search import Search
from atrex.candidate import Candidate
from atrex.commands.common import operator_cases
from atrex.judge import Engine
from atrex.measure import Protocol, Timing, protocol_for
from atrex.pool import at_end
from atrex.problem import load_problem
from atrex.records import Case, Device, Judgement, Ratio, Verdict
from atrex.roofline import bound, detect
from atrex.score import weighted_mean

Way = Literal["search", "random"]
WAYS: tuple[Way, ...] = get_args(Way)


@dataclass(frozen=True, slots=True)
class Found:
    """What became of one operator; S by way, and paired speed-ups with their intervals."""

    operator: str
    cases: int
    S: dict[str, float]
    over_start: dict[str, Ratio]
    over_random: Ratio
    steps: dict[str, int]

    @property
    def row(self) -> str:
        """A row of the table."""
        S = " | ".join(f"{self.S[way]:.4g}" for way in ("start", *WAYS))
        ratios = " | ".join(_ratio(self.over_start[way]) for way in WAYS)
        steps = ", ".join(str(self.steps[way]) for way in WAYS)
        return f"| {self.operator} | {self.cases} | {S} | {ratios} | {_ratio(self.over_random)} | {steps} |"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Terms:
    """What every search gets."""

    device: Device
    seconds: float
    seed: int
    most_cases: int | None
    events: Path | None = None  # a folder

    def cases(self, operator: str) -> tuple[Case, ...]:
        """The cases of one operator, with all extents of their shapes."""
        problem, cases = load_problem(operator), operator_cases("atrex-bench", operator)
        if self.most_cases is None:
            return tuple(problem.with_dims(case) for case in cases)
        hardware = detect(self.device)

        def sol_us(case: Case) -> float:
            return bound(problem.cost(problem.shape(case)), hardware, None).sol_us

        return spread_cases(problem, cases, sol_us, self.most_cases, MOST_US[self.device])


class NoStart(Exception):
    """No reference kernel of an operator is accepted."""


class OutOfTime(Exception):
    """A search's seconds are over."""


class Limited(Instrument):
    """Gives up a judgement once its verdict would come too late to count."""

    over: Callable[[], bool] = staticmethod(lambda: False)

    def judge(self, candidate: Candidate, *, level: Level, cases: Sequence[Case], **_: Any) -> Judgement:
        """As an Instrument does. Raises OutOfTime."""

        def look(_: Verdict) -> None:
            if self.over():
                raise OutOfTime

        return super().judge(candidate, level=level, cases=cases, progress=look)


class Lane:
    """An engine, and what is done with it one step after another."""

    here: Lane

    def __init__(self, terms: Terms, turn: Turn) -> None:
        self.terms, self.turn = terms, turn
        self.engine = Engine(terms.device)
        at_end(self.engine.close)

    @contextmanager
    def lab(self, operator: str) -> Iterator[Limited]:
        """The instrument for one operator."""
        device = self.terms.device
        with tempfile.TemporaryDirectory() as folder:

            def save(candidate: Candidate) -> Path:
                path = Path(folder) / f"{candidate.id}.py"
                path.write_text(candidate.source, encoding="utf-8")
                return path

            calibration, rules = calibration_of(device, print), protocol_for(device, quick=True)
            lab = Limited(
                self.engine, load_problem(operator), detect(device), calibration, rules, save, self.turn.alone
            )
            try:
                yield lab
            finally:
                lab.close()

    def start(self, operator: str) -> tuple[Candidate, float]:
        """The first reference kernel that all gates accept, and the seconds of that. Raises NoStart."""
        retriever, cases, why = self._retriever(operator), self.terms.cases(operator), "there is none"
        with self.lab(operator) as lab:
            for kernel in retriever.knowledge().kernels:
                candidate = kernel.candidate(operator)
                began = self.turn.clock()
                judgement = lab.judge(candidate, level="full", cases=cases)
                took = self.turn.clock() - began
                say(f"  {operator}: {kernel.name} judged in {took:.0f} s ({_longest(judgement)})")
                if judgement.accepted:
                    return candidate, took
                why = f"{kernel.name}: {judgement.objection}"
        raise NoStart(f"no reference kernel is accepted: {why}")

    def search(
        self, operator: str, way: Way, start: Candidate, judged_seconds: float
    ) -> tuple[Candidate, int]:
        """What a search had promoted when its seconds were over, and its steps.

        Raises TimingFault if the start cannot be timed.
        """
        random, events, began = way == "random", list[Event](), time.monotonic()
        since = self.turn.clock()

        def record(event: Event) -> None:
            events.append(event)
            if isinstance(event, Judged):
                say(f"  {operator} {way}: {event.level} judgement, {_longest(event.judgement)}")
            if folder := self.terms.events:
                with (folder / f"{operator}-{way}.jsonl").open("a", encoding="utf-8") as file:
                    file.write(event.model_dump_json() + "\n")

        def progress(line: str) -> None:
            say(f"  {operator} {way} {self.turn.clock() - since:.0f} s: {line}")

        with self.lab(operator) as lab:
            lab.over = lambda: self.turn.clock() - since > self.terms.seconds
            search = Search(
                lab,
                RandomProposer() if random else SearchProposer(),
                self._retriever(operator),
                RunStarted(
                    operator=operator,
                    seed=self.terms.seed,
                    proposer=way,
                    start=start,
                    judged_seconds=judged_seconds,
                    cases=self.terms.cases(operator),
                    buckets=lab.problem.spec.buckets,
                    promotion=PromotionPolicy(patience=0) if random else PromotionPolicy(),
                    dropout=DropoutPolicy(enabled=not random),
                ),
                budget=Budget(self.terms.seconds, reserve=0.0),
                record=record,
                progress=progress,
                clock=self.turn.clock,
            )
            with suppress(OutOfTime):
                search.run()
            state = search.state
        passed = time.monotonic() - began
        say(f"  {operator} {way}: {state.step} steps in {state.elapsed:.0f} s, {passed:.0f} s on the wall")
        promoted = incumbents(events, self.terms.seconds)
        return state.candidate(promoted[-1].candidate) if promoted else start, state.step

    def measure(self, operator: str, candidates: dict[str, Candidate], steps: dict[str, int]) -> Found:
        """All candidates beside one another. Raises TimingFault."""
        cases = self.terms.cases(operator)
        rules = replace(protocol_for(self.terms.device), case_seconds=0.4)
        S, ratios = {way: list[float]() for way in candidates}, list[dict[str, Ratio]]()
        with self.lab(operator) as lab:
            for case in cases:
                timings = _timed(lab, candidates, case, rules)
                for way, timing in timings.items():
                    S[way].append(lab.bound(case).sol_us / timing.latency.median_us)
                found = {way: timings[way].ratio_to(timings["start"]) for way in WAYS}
                ratios.append(found | {"over": timings["search"].ratio_to(timings["random"])})
        weights = [case.weight for case in cases]
        means = {name: geometric_mean([each[name] for each in ratios], weights) for name in ratios[0]}
        return Found(
            operator,
            len(cases),
            {way: weighted_mean(values, weights) for way, values in S.items()},
            {way: means[way] for way in WAYS},
            means["over"],
            steps,
        )

    def _retriever(self, operator: str) -> Retriever:
        return Retriever(operator, dsl_of(self.terms.device), self.terms.device)


def _timed(
    lab: Instrument, candidates: dict[str, Candidate], case: Case, rules: Protocol
) -> dict[str, Timing]:
    """By way; a kernel that is the result of several is timed once, as it has one worker.

    Tried twice, because a busy machine can make an honest claim of time look late. Raises TimingFault.
    """
    different = {candidate.id: candidate for candidate in candidates.values()}
    try:
        timings = lab.time(list(different.values()), case, rules)
    except FAULTS:
        try:
            timings = lab.time(list(different.values()), case, rules)
        except FAULTS as fault:
            raise TimingFault(f"{case.id}: {told(fault)}") from None
    by_id = dict(zip(different, timings, strict=True))
    return {way: by_id[candidate.id] for way, candidate in candidates.items()}


def _longest(judgement: Judgement) -> str:
    """The gates of a judgement that took longest."""
    verdicts = sorted(judgement.verdicts, key=lambda verdict: -verdict.seconds)[:3]
    return f"{judgement.seconds:.0f} s: " + ", ".join(f"{v.gate} {v.seconds:.0f} s" for v in verdicts)


def say(line: str) -> None:
    print(line[:200], file=sys.stderr, flush=True)


def enter(terms: Terms, turns: Turns) -> None:
    Lane.here = Lane(terms, turns.join())


def in_lane(step: Callable[..., Any], *arguments: Any) -> Any:
    return step(Lane.here, *arguments)
