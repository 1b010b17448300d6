"""Search against uniform random search, live: the same start, the same seconds, the same gates.

    python benchmarks/live_search.py rms_norm silu_and_mul --device cuda --seconds 90 --output live.md

Of each operator the first reference kernel that all gates accept is the start of both. The tuner
(`search`, dropout on) and uniform random search, whose wins go before the gates at once, get `--seconds`
each; what is promoted after that does not count. Then the start and both champions are timed beside one
another under the protocol of a final measurement: S as `atrex.score` defines it, and paired speed-ups over
the start. A row is written as soon as it is known. `--cases`: about as many, spread over buckets and sizes,
instead of all.

With `--lanes` several of these steps are under way at once; whenever one times, all others are stopped and
their clocks stand still (`turns.py`).
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal, get_args

from landscape import MOST_US, spread_cases
from turns import Turn, Turns

from agent.dropout import DropoutPolicy
from agent.events import Event, RunStarted, incumbents
from agent.instrument import Instrument
from agent.job import dsl_of
from agent.journal import Budget
from agent.lab import TimingFault
from agent.machine import calibration_of
from agent.promote import PromotionPolicy, geometric_mean
from agent.proposers.random import RandomProposer
from agent.proposers.search import SearchProposer
from agent.retrieve import Retriever
from agent.search import Search
from atrex.candidate import Candidate
from atrex.commands.common import choose_device, operator_cases
from atrex.errors import run_script
from atrex.judge import CandidateFault, Engine
from atrex.measure import Protocol, Timing, protocol_for
from atrex.pool import at_end, process_pool
from atrex.problem import load_problem, resolve_operator
from atrex.provenance import provenance
from atrex.records import Case, Device, Ratio
from atrex.report.workload_text import stack
from atrex.roofline import bound, detect, hardware_name
from atrex.runs import now
from atrex.score import weighted_mean

Way = Literal["search", "random"]
WAYS: tuple[Way, ...] = get_args(Way)
RATIOS = ("search / start", "random / start", "search / random")
COLUMNS = ("operator", "cases", "S start", "S search", "S random", *RATIOS, "steps")


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


# -- one step, in a process of its own -----------------------------------------------------------------------


class Lane:
    """An engine, and what is done with it one step after another."""

    here: Lane

    def __init__(self, terms: Terms, turn: Turn) -> None:
        self.terms, self.turn = terms, turn
        self.engine = Engine(terms.device)
        at_end(self.engine.close)

    @contextmanager
    def lab(self, operator: str) -> Iterator[Instrument]:
        """The instrument for one operator."""
        device = self.terms.device
        with tempfile.TemporaryDirectory() as folder:

            def save(candidate: Candidate) -> Path:
                path = Path(folder) / f"{candidate.id}.py"
                path.write_text(candidate.source, encoding="utf-8")
                return path

            calibration, rules = calibration_of(device, print), protocol_for(device, quick=True)
            lab = Instrument(
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
                if judgement.accepted:
                    return candidate, self.turn.clock() - began
                why = f"{kernel.name}: {judgement.objection}"
        raise NoStart(f"no reference kernel is accepted: {why}")

    def search(
        self, operator: str, way: Way, start: Candidate, judged_seconds: float
    ) -> tuple[Candidate, int]:
        """What a search had promoted when its seconds were over, and its steps.

        Raises TimingFault if the start cannot be timed.
        """
        random, events, began = way == "random", list[Event](), time.monotonic()
        with self.lab(operator) as lab:
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
                record=events.append,
                progress=lambda line: _say(f"  {operator} {way}: {line}"),
                clock=self.turn.clock,
            )
            state = search.run()
        passed = time.monotonic() - began
        _say(f"  {operator} {way}: {state.step} steps in {state.elapsed:.0f} s, {passed:.0f} s on the wall")
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
    except CandidateFault:
        try:
            timings = lab.time(list(different.values()), case, rules)
        except CandidateFault as fault:
            raise TimingFault(f"{case.id}: {fault.kind.value}: {fault.message}") from None
    by_id = dict(zip(different, timings, strict=True))
    return {way: by_id[candidate.id] for way, candidate in candidates.items()}


def _say(line: str) -> None:
    print(line[:200], file=sys.stderr, flush=True)


def _enter(terms: Terms, turns: Turns) -> None:
    Lane.here = Lane(terms, turns.join())


def _in_lane(step: Callable[..., Any], *arguments: Any) -> Any:
    return step(Lane.here, *arguments)


# -- all steps of all operators ------------------------------------------------------------------------------


@dataclass(slots=True)
class Comparison:
    """How far one operator has come."""

    operator: str
    candidates: dict[str, Candidate] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """A method of Lane for an operator, what else it is given, and what to do with what it returns."""

    operator: str
    method: Callable[..., Any]
    then: Callable[[Any], None]
    arguments: tuple[Any, ...] = ()


class Comparisons:
    """Leads operators through their steps; what is begun comes to its end before another operator begins."""

    def __init__(self, row: Callable[[str], None]) -> None:
        self.row, self.failed = row, set[str]()
        self._ready = deque[Step]()

    def run(self, operators: Sequence[str], pool: ProcessPoolExecutor, lanes: int) -> None:
        """Compare them all; a row each."""
        for operator in operators:
            self._ready.append(Step(operator, Lane.start, partial(self._started, Comparison(operator))))
        running = dict[Future[Any], Step]()
        while self._ready or running:
            while self._ready and len(running) < lanes:
                step = self._ready.popleft()
                running[pool.submit(_in_lane, step.method, step.operator, *step.arguments)] = step
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                self._conclude(running.pop(future), future)

    def _conclude(self, step: Step, future: Future[Any]) -> None:
        try:
            step.then(future.result())
        except (NoStart, TimingFault) as error:
            if step.operator not in self.failed:
                self.row(f"| {step.operator} | | not compared: {error} |")
            self.failed.add(step.operator)

    def _started(self, of: Comparison, found: tuple[Candidate, float]) -> None:
        of.candidates["start"] = found[0]
        for way in reversed(WAYS):
            then = partial(self._searched, of, way)
            self._ready.appendleft(Step(of.operator, Lane.search, then, (way, *found)))

    def _searched(self, of: Comparison, way: Way, found: tuple[Candidate, int]) -> None:
        of.candidates[way], of.steps[way] = found
        if len(of.steps) == len(WAYS):
            self._ready.appendleft(Step(of.operator, Lane.measure, self._measured, (of.candidates, of.steps)))

    def _measured(self, found: Found) -> None:
        self.row(found.row)


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare both on some operators; 1 if an operator could not be."""
    parser = argparse.ArgumentParser(description="Search against random search, live.")
    parser.add_argument("operators", nargs="+", type=resolve_operator)
    parser.add_argument("--device", default="auto", choices=("auto", *get_args(Device)))
    parser.add_argument("--seconds", type=float, default=90.0, help="of each search")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, help="the most cases of an operator; all without")
    parser.add_argument("--lanes", type=int, default=1, help="steps under way at once")
    parser.add_argument("--output", type=Path, help="write the Markdown page here instead of printing it")
    asked = parser.parse_args(arguments)
    device = choose_device(asked.device)
    calibration_of(device, print)  # once, before anybody else uses the device
    command = shlex.join(["python", "benchmarks/live_search.py", *(arguments or sys.argv[1:])])
    known = provenance(hardware_name(device), device)
    about = f"`{command}`, {now()[:10]}, {known.hardware}, {stack(known)}."
    page = ["# Search against uniform random search, live", "", about, ""]
    page += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]

    def row(line: str) -> None:
        page.append(line)
        _say(line)
        if asked.output:
            asked.output.write_text("\n".join(page) + "\n", encoding="utf-8")

    terms = Terms(device, asked.seconds, asked.seed, asked.cases)
    turns = Turns(get_context("spawn"), asked.lanes)
    comparisons = Comparisons(row)
    with process_pool(asked.lanes, partial(_enter, terms, turns)) as pool:
        comparisons.run(asked.operators, pool, asked.lanes)
    if not asked.output:
        print("\n".join(page))
    return 1 if comparisons.failed else 0


if __name__ == "__main__":
    run_script(main)
