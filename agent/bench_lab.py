"""The instrument of a benchmark on this machine: gates, timing under a short protocol, bounds.

One worker an operator stays warm over its cases, with what it compiled. Huge cases bound the number of input
sets by memory. See "Benchmarks" in docs/measurement.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import psutil
import torch

from atrex import gpu_memory
from atrex.candidate import Candidate
from atrex.gates.context import Level
from atrex.judge import CandidateFault, Engine, HarnessError, Session
from atrex.measure import Protocol as Rules
from atrex.measure import Timing, measure_case, protocol_for
from atrex.problem import Problem, load_problem
from atrex.protocol import Call, InputSpec
from atrex.records import Bound, Case, Device, FaultKind, Judgement, Shape
from atrex.roofline import Calibration, Hardware, bound
from atrex.telemetry import gpu_telemetry
from atrex.verify import Verifier

_SET_SHARE = 0.2  # of the memory, for all input sets: fp32 copies of a reference take several times as much
_HELD_BYTES = 1 << 29  # larger cases are not compared with the oracle in a sample: it would take seconds
_HELD_EVERY = 8
_FEW_CORES = 4
_WARM_ROWS, _WARM_BYTES = 37, 1 << 34  # the largest experts' weights, of a few rows

Job = tuple[Candidate, Sequence[Case]]


class NotTimed(Exception):
    """A case has no timing, for a reason of one line.

    `candidate` is the id of the one to blame and `kind` its fault, if it was one's.
    """

    def __init__(self, reason: str, candidate: str = "", kind: FaultKind | None = None) -> None:
        super().__init__(reason)
        self.candidate = candidate
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Care:
    """How much a timing must guard against."""

    held: bool = False  # hold claims of time and outputs of timed calls to the judge's own
    stranger: bool = (
        False  # code that is not ours: as many input sets as keep a remembered result from paying
    )
    lean: bool = False  # one set of inputs: there was not enough memory for more


class BenchLab(Protocol):
    """The instrument, seen from the loop."""

    def bound(self, case: Case) -> Bound:
        """Roofline of one case on this machine."""
        ...

    def judge(self, candidate: Candidate, cases: Sequence[Case], level: Level, seed: int) -> Judgement:
        """All gates at a level."""
        ...

    def time(self, candidates: Sequence[Candidate], case: Case, care: Care) -> list[Timing]:
        """Interleaved timings in the order of the candidates. Raises NotTimed."""
        ...

    def warm(self, jobs: Sequence[Job], stop: Callable[[], bool]) -> None:
        """Call candidates on each kind of shape of their cases, side by side, so that they compile."""
        ...

    def release(self, operator: str) -> None:
        """End an operator's workers; its next timing starts fresh ones."""
        ...


@dataclass(slots=True)
class MachineLab:
    """Implements `BenchLab` with an engine."""

    engine: Engine
    hardware: Hardware
    calibration: Calibration | None
    cores: int = field(default_factory=lambda: os.cpu_count() or 1)
    _sessions: dict[str, Session] = field(default_factory=dict)

    def bound(self, case: Case) -> Bound:
        """Roofline of one case on this machine."""
        problem = load_problem(case.operator)
        return bound(problem.cost(problem.shape(case)), self.hardware, self.calibration)

    def judge(self, candidate: Candidate, cases: Sequence[Case], level: Level, seed: int) -> Judgement:
        """All gates at a level, up to the first failure."""
        with Verifier(self.engine) as verifier:
            path = Path(f"{candidate.operator}.py")
            return verifier.judge(candidate, cases, level=level, seed=seed, path=path)

    def time(self, candidates: Sequence[Candidate], case: Case, care: Care) -> list[Timing]:
        """Interleaved timings; after a fault all workers start anew. Raises NotTimed."""
        device = self.engine.device
        rules = bench_rules(device, len(candidates), care, memory=_memory(device))
        telemetry = gpu_telemetry(device)
        sessions = [self._session(candidate) for candidate in candidates]
        try:
            return measure_case(sessions, case, rules, telemetry, self.bound(case).sol_us)
        except CandidateFault as fault:
            reason = NotTimed(f"{fault.kind.value}: {fault.message}", fault.candidate, fault.kind)
        except HarnessError as error:  # inputs are built outside candidate code
            memory = "out of memory" in str(error).lower() or "OutOfMemory" in str(error)
            reason = NotTimed(f"harness: {error}", kind=FaultKind.OUT_OF_MEMORY if memory else None)
        except (torch.OutOfMemoryError, MemoryError) as error:
            what = f"the judge ran out of memory: {str(error).splitlines()[0]}"
            reason = NotTimed(what, kind=FaultKind.OUT_OF_MEMORY)
        finally:
            if care.held:
                gpu_memory.give_back()  # what the judge's own check took is the workers' again
        for session in sessions:
            session.close()  # what it compiled stays on disk, and it starts again at its next request
        raise reason

    def warm(self, jobs: Sequence[Job], stop: Callable[[], bool]) -> None:
        """Call candidates on each kind of shape of their cases; what fails says so when it is timed.

        A core each, those with the most shapes first, so that none of them is still at work after the others.
        On few cores nothing is won by it, and all workers at once would need more memory than one.
        """
        if self.cores < _FEW_CORES:
            return
        work = [(self._session(candidate), _kinds(candidate, cases)) for candidate, cases in jobs]
        work.sort(key=lambda each: -len(each[1]))
        with suppress(CandidateFault, HarnessError):
            work[0][0].load()  # starts the fork server, which threads must not race for
        with ThreadPoolExecutor(self.cores - 1) as pool:
            list(pool.map(lambda one: _warm(one[0], one[1], stop), work))

    def release(self, operator: str) -> None:
        """End an operator's workers, and delete what they left on the disk."""
        for session in [one for one in self._sessions.values() if one.candidate.operator == operator]:
            session.close()
            self.engine.forget(session.candidate)
            del self._sessions[session.candidate.id]

    def _session(self, candidate: Candidate) -> Session:
        if candidate.id not in self._sessions:
            self._sessions[candidate.id] = self.engine.session(candidate)
        return self._sessions[candidate.id]


def _kinds(candidate: Candidate, cases: Sequence[Case]) -> list[Shape]:
    """The shapes that are compiled on their own."""
    problem = load_problem(candidate.operator)
    shapes = [shape for case in cases if (shape := compiled_alike(problem, case))]
    return [shape for place, shape in enumerate(shapes) if shape not in shapes[:place]]


def _warm(session: Session, shapes: Sequence[Shape], stop: Callable[[], bool]) -> None:
    """One call on each shape, unless one takes too long; then the device's memory is the others' again."""
    for shape in shapes:
        if stop():
            break
        try:
            session.run(Call(inputs=InputSpec(shape=shape, seed=0), deliver=False))
        except CandidateFault as fault:
            if fault.kind is FaultKind.TIMEOUT:
                return
        except HarnessError:
            continue
    with suppress(CandidateFault, HarnessError):
        session.trim()


def compiled_alike(problem: Problem, case: Case) -> Shape | None:
    """A cheap shape for which a compiler makes the code that the case needs; None: there is none.

    The baseline compiles a leading extent once for all its sizes (but 0 and 1), so few rows will do. The
    reduced shapes of a CPU will not: their widths and heads are other ones.
    """
    shape = problem.shape(case)
    if problem.rows is not None:
        shape = problem.resize(shape, **{problem.rows: min(shape.dims[problem.rows], _WARM_ROWS)})
    nbytes = sum(problem.nbytes(tensor, shape) for tensor in problem.tensors)
    return shape if nbytes <= _WARM_BYTES else None


def bench_rules(device: Device, contestants: int, care: Care, *, memory: int) -> Rules:
    """The protocol of a benchmark: about a second a case, where a final measurement takes several.

    A baseline alone needs no paired interval, so three rounds are enough for a call that takes seconds.
    """
    rules = protocol_for(device, quick=True)
    return replace(
        rules,
        min_rounds=3 if contestants == 1 else rules.min_rounds,
        max_rounds=20,
        case_seconds=0.25,
        max_sets=min(rules.max_sets, 64),
        min_sets=None if care.stranger or device == "cpu" else 1,
        most_bytes=1 if care.lean else int(_SET_SHARE * memory / contestants),
        hold=care.held,
    )


def held_in_sample(cases: Sequence[Case]) -> set[str]:
    """Ids of the cases on which a compiler or a library is checked: every eighth of the small ones."""
    small = list[str]()
    for case in cases:
        problem = load_problem(case.operator)
        shape = problem.shape(case)
        if sum(problem.nbytes(tensor, shape) for tensor in problem.tensors) <= _HELD_BYTES:
            small.append(case.id)
    return set(small[::_HELD_EVERY])


def _memory(device: Device) -> int:
    """Bytes of the memory that tensors live in."""
    if device == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory)
    return int(psutil.virtual_memory().available)
