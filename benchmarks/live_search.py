"""Search against uniform random search, live: the same start, the same seconds, the same gates.

    python benchmarks/live_search.py rms_norm silu_and_mul --device cuda --seconds 90 --output live.md

Of each operator the first reference kernel that all gates accept is the start of both. The tuner
(`search`, dropout on) and uniform random search, whose wins go before the gates at once, get `--seconds`
each, one after the other; which of them is first alternates. Then the start and both champions are timed
beside one another on all cases under the protocol of a final measurement: S as `atrex.score` defines it,
and paired speed-ups over the start. A row is written as soon as it is known.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from agent.dropout import DropoutPolicy
from agent.events import Event, RunStarted
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
from atrex.problem import load_problem, resolve_operator
from atrex.provenance import provenance
from atrex.records import Case, Device, Ratio
from atrex.roofline import detect, hardware_name
from atrex.runs import now
from atrex.score import weighted_mean

Way = Literal["search", "random"]
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
        S = " | ".join(f"{self.S[way]:.4g}" for way in ("start", *get_args(Way)))
        ratios = " | ".join(_ratio(self.over_start[way]) for way in get_args(Way))
        steps = ", ".join(str(self.steps[way]) for way in get_args(Way))
        return f"| {self.operator} | {self.cases} | {S} | {ratios} | {_ratio(self.over_random)} | {steps} |"


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def compared(operator: str, device: Device, seconds: float, seed: int, first: Way, engine: Engine) -> Found:
    """Both searches of one operator, and their champions beside the start.

    Raises RuntimeError where no reference kernel is accepted.
    """
    problem, cases = load_problem(operator), operator_cases("atrex-bench", operator)
    with tempfile.TemporaryDirectory() as folder:

        def save(candidate: Candidate) -> Path:
            path = Path(folder) / f"{candidate.id}.py"
            path.write_text(candidate.source, encoding="utf-8")
            return path

        rules = protocol_for(device, quick=True)
        lab = Instrument(engine, problem, detect(device), calibration_of(device, print), rules, save)
        try:
            retriever = Retriever(operator, dsl_of(device), device)
            start = _start(lab, retriever, operator, cases)
            best, steps = dict[str, Candidate](), dict[str, int]()
            for way in sorted(get_args(Way), key=lambda each: each != first):
                best[way], steps[way] = _searched(lab, retriever, way, start, cases, seconds, seed)
            return _measured(lab, {"start": start, **best}, cases, steps)
        finally:
            lab.close()


def _start(lab: Instrument, retriever: Retriever, operator: str, cases: Sequence[Case]) -> Candidate:
    for kernel in retriever.knowledge().kernels:
        candidate = Candidate(operator, kernel.dsl, kernel.source, note=f"kernel {kernel.name}")
        if lab.judge(candidate, level="full", cases=cases).accepted:
            return candidate
    raise RuntimeError(f"{operator}: no reference kernel is accepted")


def _searched(
    lab: Instrument,
    retriever: Retriever,
    way: Way,
    start: Candidate,
    cases: Sequence[Case],
    seconds: float,
    seed: int,
) -> tuple[Candidate, int]:
    """The champion of one search, and its steps."""
    random, events, began = way == "random", list[Event](), time.monotonic()
    search = Search(
        lab,
        RandomProposer() if random else SearchProposer(),
        retriever,
        RunStarted(
            operator=lab.problem.operator,
            seed=seed,
            proposer=way,
            start=start,
            cases=tuple(lab.problem.with_dims(case) for case in cases),
            buckets=lab.problem.spec.buckets,
            promotion=PromotionPolicy(patience=0) if random else PromotionPolicy(),
            dropout=DropoutPolicy(enabled=not random),
        ),
        budget=Budget(seconds, reserve=0.0),
        record=events.append,
        progress=lambda line: print(f"  {way}: {line}"[:200], file=sys.stderr, flush=True),
        clock=lambda: time.monotonic() - began,
    )
    state = search.run()
    lab.release()
    return state.best, state.step


def _measured(
    lab: Instrument, candidates: dict[str, Candidate], cases: Sequence[Case], steps: dict[str, int]
) -> Found:
    rules = replace(protocol_for(lab.engine.device), case_seconds=0.4)
    S, ratios = {way: list[float]() for way in candidates}, list[dict[str, Ratio]]()
    for case in cases:
        timings = _timed(lab, candidates, case, rules)
        for way, timing in timings.items():
            S[way].append(lab.bound(case).sol_us / timing.latency.median_us)
        found = {way: timings[way].ratio_to(timings["start"]) for way in get_args(Way)}
        ratios.append(found | {"over": timings["search"].ratio_to(timings["random"])})
    weights = [case.weight for case in cases]
    means = {name: geometric_mean([each[name] for each in ratios], weights) for name in ratios[0]}
    return Found(
        lab.problem.operator,
        len(cases),
        {way: weighted_mean(values, weights) for way, values in S.items()},
        {way: means[way] for way in get_args(Way)},
        means["over"],
        steps,
    )


def _timed(
    lab: Instrument, candidates: dict[str, Candidate], case: Case, rules: Protocol
) -> dict[str, Timing]:
    """By way; a kernel that is the result of several is timed once, as it has one worker.

    Tried twice, because a busy machine can make an honest claim of time look late.
    """
    different = {candidate.id: candidate for candidate in candidates.values()}
    try:
        timings = lab.time(list(different.values()), case, rules)
    except CandidateFault:
        timings = lab.time(list(different.values()), case, rules)
    by_id = dict(zip(different, timings, strict=True))
    return {way: by_id[candidate.id] for way, candidate in candidates.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare both on some operators; 1 if an operator could not be."""
    parser = argparse.ArgumentParser(description="Search against random search, live.")
    parser.add_argument("operators", nargs="+", type=resolve_operator)
    parser.add_argument("--device", default="auto", choices=("auto", *get_args(Device)))
    parser.add_argument("--seconds", type=float, default=90.0, help="of each search")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="write the Markdown page here instead of printing it")
    asked = parser.parse_args(arguments)
    device = choose_device(asked.device)
    command = shlex.join(["python", "benchmarks/live_search.py", *(arguments or sys.argv[1:])])
    known = provenance(hardware_name(device), device)
    about = f"{known.hardware}, {known.harness}, torch {known.torch}, triton {known.triton}"
    page = ["# Search against uniform random search, live", "", f"`{command}`, {now()[:10]}, {about}.", ""]
    page += [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    failed = 0
    with Engine(device) as engine:
        for number, operator in enumerate(asked.operators):
            first: Way = "random" if number % 2 else "search"
            try:
                found = compared(operator, device, asked.seconds, asked.seed, first, engine)
                page.append(found.row)
            except (RuntimeError, TimingFault, CandidateFault) as error:
                failed = 1
                page.append(f"| {operator} | | not compared: {error} |")
            print(page[-1], file=sys.stderr, flush=True)
            if asked.output:
                asked.output.write_text("\n".join(page) + "\n", encoding="utf-8")
    if not asked.output:
        print("\n".join(page))
    return failed


if __name__ == "__main__":
    run_script(main)
