"""A campaign: mutants of honest kernels over several processes, each with its own engine and workers."""

from __future__ import annotations

import random
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace

import torch

from atrex.judge import CandidateFault, Engine, Session, Timeouts
from atrex.pool import process_pool
from atrex.problem import load_problem
from atrex.records import Case, Device, FaultKind
from atrex.verify import Verifier
from tests.mutation.judging import context_for, judge, plain_check, production_shapes
from tests.mutation.legal import Drawer
from tests.mutation.mutants import Kernel, Mutant
from tests.mutation.records import Result, WitnessRecord
from tests.mutation.witness import Grounds, Search, search
from traces.workload import load_workload

_CHUNK = 16  # mutants of one kernel that a process takes at a time: they share the honest kernel's calls
_TIMEOUTS = Timeouts(load=180.0, call=60.0)


@dataclass(frozen=True, slots=True)
class Options:
    """How a campaign runs."""

    device: Device
    threads: int
    search_seconds: float
    seed: int = 0
    until: float = float("inf")  # time.time() after which no mutant is begun


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some mutants of one kernel."""

    kernel: Kernel
    mutants: tuple[Mutant, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a chunk: its results, and trials on which the honest kernel is not within its bound."""

    results: tuple[Result, ...]
    doubts: tuple[str, ...] = ()


def chunks(mutants: Sequence[Mutant]) -> list[Chunk]:
    """Mutants by kernel, a few at a time, every kernel's first few first: time may run out."""
    by_kernel = dict[str, list[Mutant]]()
    for mutant in mutants:
        by_kernel.setdefault(mutant.kernel.name, []).append(mutant)
    longest = max(map(len, by_kernel.values()), default=0)
    return [
        Chunk(group[0].kernel, tuple(group[start : start + _CHUNK]))
        for start in range(0, longest, _CHUNK)
        for group in by_kernel.values()
        if start < len(group)
    ]


def run(
    mutants: Sequence[Mutant], options: Options, jobs: int, progress: Callable[[Report], None]
) -> list[Report]:
    """All mutants, over `jobs` processes; `progress` hears of every chunk as it is done."""
    reports, left = list[Report](), list(mutants)
    for processes in dict.fromkeys((jobs, 1)):  # alone once more, what neighbours may have disturbed
        disturbed = set[str]()
        with process_pool(processes) as pool:
            futures = [pool.submit(run_chunk, chunk, options) for chunk in chunks(left)]
            for future in as_completed(futures):
                report = future.result()
                if processes > 1:
                    disturbed |= {result.id for result in report.results if result.disturbed}
                    kept = tuple(result for result in report.results if not result.disturbed)
                    report = replace(report, results=kept)
                reports.append(report)
                progress(report)
        left = [mutant for mutant in left if mutant.id in disturbed]
    return reports


def run_chunk(chunk: Chunk, options: Options) -> Report:
    """One chunk, with an engine of its own."""
    if time.time() > options.until:
        return Report(tuple(_result(mutant, "not run", "out of time") for mutant in chunk.mutants))
    torch.set_num_threads(options.threads)
    with Engine(options.device, threads=options.threads, timeouts=_TIMEOUTS) as engine:
        bench = Bench(engine, chunk.kernel, options)
        try:
            results = [bench.examine(mutant) for mutant in chunk.mutants]
        finally:
            bench.close()
        return Report(
            tuple(results), tuple(f"{chunk.kernel.name}: {doubt}" for doubt in bench.grounds.doubts)
        )


class Bench:
    """One honest kernel with what it takes to examine its mutants."""

    def __init__(self, engine: Engine, kernel: Kernel, options: Options) -> None:
        self.engine, self.options = engine, options
        self.verifier = Verifier(engine)
        self.cases: tuple[Case, ...] = load_workload().cases(kernel.operator)
        self.honest = engine.session(kernel.candidate)
        self._stack = ExitStack()
        context = context_for(self.honest, self.cases, "full", "witness", self.verifier, self._stack)
        dice = random.Random(zlib.crc32(f"{options.seed} {kernel.operator}".encode()))
        problem = load_problem(kernel.operator)
        self.grounds = Grounds(problem, self.honest, Drawer(context, dice).trials())
        self.shapes = production_shapes(context)

    def close(self) -> None:
        """End all workers but the engine's fork server, which is the caller's."""
        self._stack.close()
        self.honest.close()
        self.verifier.close()

    def examine(self, mutant: Mutant) -> Result:
        """A mutant's witness and, if it has one, what allclose and the gates say."""
        if time.time() > self.options.until:
            return _result(mutant, "not run", "out of time")
        started = time.monotonic()
        candidate = mutant.candidate
        try:
            with self.engine.session(candidate) as session:
                result = self._examine(mutant, session)
        except Exception as error:  # noqa: BLE001 - one mutant's trouble must not end the campaign
            text = " ".join(str(error).split())[:300]
            result = _result(mutant, "not run", f"harness: {type(error).__name__}: {text}")
        finally:
            self.engine.forget(candidate)
        result = result.model_copy(update={"seconds": round(time.monotonic() - started, 1)})
        print(result.summary, file=sys.stderr, flush=True)
        return result

    def _examine(self, mutant: Mutant, session: Session) -> Result:
        try:
            allclose = plain_check(session, self.shapes)  # first: the search poisons the worker's memory
        except CandidateFault as fault:
            # Slow is not broken: a busy machine, or a loop without an end, and who can tell.
            status = "not run" if fault.kind is FaultKind.TIMEOUT else "does not run"
            return _result(mutant, status, f"{fault.kind.value}: {fault.message[:200]}")
        found = search(self.grounds, session, seconds=self.options.search_seconds)
        if found.witness is None:
            return _result(mutant, "unwitnessed", found.why)
        judged = judge(session, self.cases, self.verifier)
        if judged.broken:  # no verdict is none
            return _result(mutant, "not run", judged.broken)
        return _result(mutant, "clear" if found.witness.clear else "marginal", found.why).model_copy(
            update={
                "witness": _witness(found),
                "allclose": allclose,
                "killed": judged.killed,
                "gate": judged.gate,
                "level": judged.level,
                "reason": judged.reason,
                "undecided": judged.undecided,
            }
        )


def _witness(found: Search) -> WitnessRecord:
    assert found.witness is not None
    ratio = found.witness.difference.ratio
    return WitnessRecord(
        spec=found.witness.trial.spec,
        what=found.witness.difference.what,
        ratio=min(ratio, 1e300),
    )


def _result(mutant: Mutant, status: str, why: str) -> Result:
    return Result.model_validate(
        {
            "id": mutant.id,
            "operator": mutant.kernel.operator,
            "family": load_problem(mutant.kernel.operator).spec.family,
            "kernel": mutant.kernel.name,
            "path": str(mutant.kernel.path),
            "fault": mutant.fault,
            "line": mutant.line,
            "note": mutant.note,
            "status": status,
            "why": why,
        }
    )
