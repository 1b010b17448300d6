"""Record landscapes: a reference kernel over a complete grid of its tunables, timed on some production cases.

    python benchmarks/landscape.py --device cuda --configs 48 --seconds 50 --output docs/results/landscapes
    python benchmarks/landscape.py rms_norm --device cpu --configs 12 --cases 2 --seconds 120 --output /tmp/l

`benchmarks/ablation.py` searches what this records. Of each operator the first reference kernel with tunables
is taken, with the configuration of its last rule everywhere: the untuned start. The grid holds that
configuration and grows by one value of one tunable at a time (`agent.recorded.growing_grids`). When the time
is up the largest complete grid is kept: a search over it can ask for nothing that was not recorded. Of
each bucket some cases are taken, spread over its sizes.

As many workers as there are cores work at once. Together they compile and make the first calls, of which the
outputs are held against the oracle as at a screening; then all of them are timed on one case after another,
in interleaved rounds and with nothing else running. One pair is also timed as a search times it, and the
start screened by all gates (unless --screen states those seconds): the prices of a replay.

Estimate for an H200 with 16 cores: 16 workers start in 4 s, compile and call 5 cases in 10 s, and take
16 x 5 x 0.07 s = 6 s to be timed, so 48 configurations take 60 s at most and 50 s are enough for two or three
batches: ten operators in 9 minutes with --screen given. An operator's file is written as soon as it is done.
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from measured import called

from agent import dispatch
from agent.buckets import Grid
from agent.dispatch import Rule
from agent.lab import Config, Tunables
from agent.machine import calibration_of
from agent.recorded import Cell, Landscape, Pace, Point, combinations, growing_grids, planned, save_landscape
from atrex import gpu_memory
from atrex.candidate import Candidate
from atrex.commands.common import choose_device, operator_cases
from atrex.errors import AtrexError, UsageError, run_script
from atrex.gates.context import GateContext, Rejection, Undecided, make_plan
from atrex.judge import CandidateFault, Engine, HarnessError, Session, Timeouts
from atrex.measure import Protocol, Timing, measure_case, protocol_for
from atrex.problem import Problem, load_problem, resolve_operator
from atrex.provenance import provenance
from atrex.records import Bound, Case, Device, Status
from atrex.roofline import Calibration, Hardware, bound, detect
from atrex.runs import now
from atrex.verify import Verifier, engine_kind
from knowledge.item import Item, load_items

JUDGED_ELEMENTS = 1 << 22  # an output with more is looked at through windows of rows
PATIENCE = Timeouts(load=90.0, call=30.0, round=30.0)  # a configuration may be very slow; none may hang
SETS, SET_BYTES = 16, 1 << 30  # inputs of one worker: all of a batch hold theirs at once
MOST_US = {"cuda": 300.0, "cpu": 5000.0}  # of a case's bound: a bad configuration takes tens of times as long


# -- what to record ------------------------------------------------------------------------------------------


def spread_cases(
    problem: Problem, cases: Sequence[Case], sol_us: Callable[[Case], float], most: int, most_us: float
) -> tuple[Case, ...]:
    """About `most` cases, spread over the buckets (the heaviest if there are too many) and their sizes.

    Every case states all extents of its shape, as in a search. Raises UsageError if all are too slow.
    """
    whole = [problem.with_dims(case) for case in cases]
    quick = [case for case in sorted(whole, key=sol_us) if sol_us(case) <= most_us]
    groups = Grid(problem.spec.buckets).group(quick).values()
    if not groups:
        raise UsageError(f"{problem.operator}: no case has a bound of {most_us:g} us or less")
    heavy = sorted(groups, key=lambda group: -sum(case.weight for case in group))[:most]
    chosen = list[Case]()
    for group in heavy:
        count = min(len(group), most // len(heavy))
        chosen += [group[(2 * place + 1) * len(group) // (2 * count)] for place in range(count)]
    return tuple(sorted(chosen, key=lambda case: case.id))


def kernels(device: Device) -> dict[str, Item]:
    """The first reference kernel with tunables of each operator that has one for this device."""
    dsl = "triton" if device == "cuda" else "cpp"
    found = dict[str, Item]()
    for item in load_items():
        if item.kind == "kernel" and item.tunables and item.dsl == (dsl,):
            for operator in item.operator:
                found.setdefault(operator, item)
    return found


# -- recording it --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """One configuration at work: its worker, and what is known of each case."""

    config: Config
    session: Session
    load_seconds: float = 0.0
    cells: dict[str, Cell] = field(default_factory=dict)

    @property
    def point(self) -> Point:
        """What is recorded of it."""
        return Point(config=self.config, load_seconds=self.load_seconds, cells=self.cells)


@dataclass(frozen=True, slots=True)
class Collector:
    """Records landscapes on one device."""

    engine: Engine
    hardware: Hardware
    calibration: Calibration | None
    configs: int
    cases: int
    rounds: int
    seconds: float
    jobs: int
    screen: float | None
    command: str
    say: Callable[[str], None]

    def landscape(self, operator: str, item: Item) -> Landscape:
        """Record one operator. Raises UsageError if the start itself cannot be timed, or no case can."""
        began = time.monotonic()
        problem = load_problem(operator)
        source = item.source_code()
        start = dispatch.read(source, item.id)[-1].config
        tunables: Tunables = {name: tuple(v) for name, v in item.tunables.items() if name in start}
        grids = growing_grids(tunables, start, self.configs)
        cases = spread_cases(
            problem,
            operator_cases("atrex-bench", operator),
            lambda case: self._bound(problem, case).sol_us,
            self.cases,
            MOST_US[self.engine.device],
        )
        base = Candidate(operator, item.dsl[0], _everywhere(source, start))  # type: ignore[arg-type]
        points, paces, method = self._points(base, problem, cases, planned(grids, start), began)
        if reasons := [cell.reason for cell in points[0].cells.values() if cell.reason]:
            raise UsageError(f"{item.id}: the start has no times: {reasons[0]}")
        known = [point.config for point in points]
        grid = [g for g in grids if all(config in known for config in combinations(g, start))][-1]
        kept = combinations(grid, start)
        screen, notes = self._screening(base, cases)
        return Landscape(
            operator=operator,
            dsl=base.dsl,
            kernel=item.id,
            source=base.source,
            tunables=grid,
            buckets=problem.spec.buckets,
            cases=cases,
            bounds={case.id: self._bound(problem, case) for case in cases},
            method=method,  # type: ignore[arg-type]
            paces=paces,
            screen_seconds=screen,
            points=tuple(point for point in points if point.config in kept),
            provenance=provenance(self.hardware.name, self.engine.device),
            date=now(),
            command=self.command,
            notes=notes,
        )

    def _points(
        self, base: Candidate, problem: Problem, cases: Sequence[Case], plan: Sequence[Config], began: float
    ) -> tuple[list[Point], dict[str, Pace], str]:
        """Batches of the plan while there is time; prices and method from the first one."""
        with suppress(CandidateFault, HarnessError), self.engine.session(base) as session:
            session.load()  # starts the fork server, which threads must not race for
        self.engine.forget(base)  # what it compiled must not make the start look cheap
        points: list[Point] = []
        paces, method, last = dict[str, Pace](), "wall", 0.0
        for first in range(0, len(plan), self.jobs):
            started = time.monotonic()
            if points and started - began + last > self.seconds:
                break
            batch = [self._run(base, config) for config in plan[first : first + self.jobs]]
            try:
                self._first_calls(batch, problem, cases)
                for case in cases:
                    method = self._time(batch, case) or method
                    if case.id not in paces:
                        paces[case.id] = self._pace(batch, case)
            finally:
                for run in batch:
                    run.session.close()
                    self.engine.forget(run.session.candidate)
            points += [run.point for run in batch]
            last = time.monotonic() - started
            self.say(f"{base.operator}: {len(points)} of {len(plan)}, {time.monotonic() - began:.0f} s")
        return points, paces, method

    def _run(self, base: Candidate, config: Config) -> Run:
        candidate = replace(base, source=_everywhere(base.source, config))
        return Run(config, self.engine.session(candidate))

    def _first_calls(self, batch: Sequence[Run], problem: Problem, cases: Sequence[Case]) -> None:
        """Load, compile and judge the outputs, all workers at once."""
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(lambda run: _judge(run, problem, cases), batch))
        gpu_memory.give_back()  # what the judge took is the workers' again

    def _time(self, batch: Sequence[Run], case: Case) -> str:
        """Interleaved rounds of all that are right; how they were timed, empty if none was."""
        rules = replace(
            protocol_for(self.engine.device, quick=True),
            min_rounds=self.rounds,
            max_rounds=self.rounds,
            max_sets=SETS,
            most_bytes=SET_BYTES,
            hold=False,  # the kernels are this repository's own
        )
        right = [run.session for run in batch if run.cells[case.id].status is Status.PASS]
        found = together(right, case, rules)
        method = ""
        for run in batch:
            if (timing := found.get(run.session.candidate.id)) is None:
                continue
            seconds = run.cells[case.id].seconds
            if isinstance(timing, str):
                run.cells[case.id] = Cell(seconds=seconds, reason=timing)
            else:
                rounds = tuple(float(f"{each:.5g}") for each in timing.rounds)
                run.cells[case.id] = Cell(seconds=seconds, rounds_us=rounds)
                method = timing.latency.method
            with suppress(CandidateFault, HarnessError):
                run.session.trim()
        return method

    def _pace(self, batch: Sequence[Run], case: Case) -> Pace:
        """What a search's own protocol takes for a comparison, from two of the batch that can be timed."""
        sessions = [run.session for run in batch if run.cells[case.id].rounds_us][:2]
        rules = protocol_for(self.engine.device, quick=True)
        began, pairs = time.monotonic(), rules.min_rounds
        with suppress(CandidateFault, HarnessError):
            if sessions:
                pairs = len(measure_case(sessions, case, rules)[0].rounds)
        for session in sessions:
            with suppress(CandidateFault, HarnessError):
                session.trim()
        return Pace(seconds=round((time.monotonic() - began) * 2 / max(1, len(sessions)), 3), pairs=pairs)

    def _screening(self, base: Candidate, cases: Sequence[Case]) -> tuple[float, tuple[str, ...]]:
        """Seconds of a screening of the start, and what it objects to."""
        if self.screen is not None:
            return self.screen, ("the seconds of a screening were given, not measured",)
        with Verifier(self.engine) as verifier:
            judgement = verifier.judge(base, cases, level="screen")
        self.engine.forget(base)
        return judgement.seconds, (() if judgement.accepted else (f"the start: {judgement.objection}",))

    def _bound(self, problem: Problem, case: Case) -> Bound:
        return bound(problem.cost(problem.shape(case)), self.hardware, self.calibration)


def _everywhere(source: str, config: Config) -> str:
    return dispatch.write(source, (Rule({}, config),))


def _judge(run: Run, problem: Problem, cases: Sequence[Case]) -> None:
    """Load one configuration and judge its output on each case."""
    started = time.monotonic()
    try:
        run.session.load()
    except CandidateFault as fault:
        reason = f"{fault.kind.value}: {fault.message}"
        run.cells = {case.id: Cell(seconds=0.0, status=Status.FAIL, reason=reason) for case in cases}
    run.load_seconds = round(time.monotonic() - started, 3)
    if not run.cells:
        run.cells = {case.id: _first_call(run.session, problem, case) for case in cases}
    with suppress(CandidateFault, HarnessError):
        run.session.trim()


def _first_call(session: Session, problem: Problem, case: Case) -> Cell:
    """Whether the output is right, as a screening looks; there are no rounds yet."""
    plan = make_plan("screen", engine_kind(session.engine, session.candidate))
    plan = replace(plan, judged_elements=min(plan.judged_elements, JUDGED_ELEMENTS))
    context = GateContext("accuracy", session, problem, [case], plan, 0, "", lambda: session)
    shape, started = problem.shape(case), time.monotonic()
    status, reason = Status.PASS, "not timed"
    try:
        if problem.rows is None and context.work(shape) > plan.small_work:
            context.check(context.representatives()[0], case.id)
            context.call(context.spec(shape), deliver=False)
        else:
            context.check(shape, case.id)
    except Rejection as rejection:
        status, reason = Status.FAIL, rejection.reason
    except Undecided as undecided:  # nothing is held against the candidate
        reason = undecided.reason
    except (HarnessError, torch.OutOfMemoryError) as error:
        status, reason = Status.ERROR, f"harness: {str(error).splitlines()[0]}"
    return Cell(seconds=round(time.monotonic() - started, 3), status=status, reason=reason)


def together(sessions: Sequence[Session], case: Case, rules: Protocol) -> dict[str, Timing | str]:
    """Timings by candidate id, or why there is none: one that fails is left out and the rest timed again."""
    left = list(sessions)
    found = dict[str, Timing | str]()
    while left:
        try:
            timings = measure_case(left, case, rules)
        except CandidateFault as fault:
            found[fault.candidate] = f"{fault.kind.value}: {fault.message}"
            left = [session for session in left if session.candidate.id not in found]
        except HarnessError as error:  # of no known candidate: memory is tight, or one alone is to blame
            if len(left) == 1:
                return found | {left[0].candidate.id: f"harness: {error}"}
            half = len(left) // 2
            return found | together(left[:half], case, rules) | together(left[half:], case, rules)
        else:
            return found | {s.candidate.id: t for s, t in zip(left, timings, strict=True)}
    return found


# -- the command ---------------------------------------------------------------------------------------------


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*", help="default: all that have a kernel with tunables")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--configs", type=int, default=48, help="the most configurations of a grid")
    parser.add_argument("--cases", type=int, default=5, help="the most cases, spread over the buckets")
    parser.add_argument("--rounds", type=int, default=5, help="of timing, for each configuration and case")
    parser.add_argument("--seconds", type=float, default=50.0, help="for the grid of one operator")
    parser.add_argument("--jobs", type=int, default=min(16, os.cpu_count() or 1))
    parser.add_argument("--screen", type=float, help="seconds of a screening, instead of measuring it")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    return parser.parse_args()


def main() -> int:
    """Record each operator's landscape; exits with 1 if one could not be."""
    asked = parsed()
    device = choose_device(asked.device)
    known = kernels(device)
    wanted = [resolve_operator(name) for name in asked.operators] or list(known)
    if lacking := [name for name in wanted if name not in known]:
        raise UsageError(f"{lacking[0]}: no kernel with tunables; there are some for {', '.join(known)}")
    hardware, calibration = detect(device), calibration_of(device, print)
    slug = re.sub(r"[^a-z0-9]+", "-", hardware.name.casefold()).strip("-")
    failed = 0
    with Engine(device, timeouts=PATIENCE) as engine:
        collector = Collector(
            engine,
            hardware,
            calibration,
            configs=asked.configs,
            cases=asked.cases,
            rounds=asked.rounds,
            seconds=asked.seconds,
            jobs=asked.jobs,
            screen=asked.screen,
            command=called(__file__),
            say=lambda line: print(line, flush=True),
        )
        for operator in wanted:
            path = asked.output / f"{slug}-{operator}.json.gz"
            try:
                save_landscape(found := collector.landscape(operator, known[operator]), path)
            except (AtrexError, HarnessError, torch.OutOfMemoryError) as error:
                failed += 1
                print(f"{operator}: not recorded: {' '.join(str(error).split())[:300]}", flush=True)
            else:
                print(f"{path}: {found.summary}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    run_script(main)
