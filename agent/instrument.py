"""The instrument on this machine, as the search sees it: judging, paired timing, bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

import torch

from agent.lab import Comparison, Level, TimingFault
from agent.profiling import collect
from agent.profiling.diagnose import bottlenecks
from agent.profiling.records import Bottleneck, Profile
from agent.profiling.watch import watch
from atrex import gpu_memory
from atrex.candidate import Candidate
from atrex.judge import CandidateFault, Engine, HarnessError, Session, new_seed
from atrex.measure import Alone, Protocol, Timing, measure_case
from atrex.problem import Problem
from atrex.protocol import InputSpec
from atrex.records import Bound, Case, Judgement, Latency
from atrex.roofline import Calibration, Hardware, bound
from atrex.telemetry import gpu_telemetry
from atrex.verify import Progress, Verifier

_WARM_SESSIONS = 3  # incumbent, candidate and one more keep their workers, and what they compiled


FAULTS = (CandidateFault, HarnessError, torch.OutOfMemoryError, MemoryError)
"""What timing raises: the candidate's failures, and the machine's."""


def told(fault: BaseException) -> str:
    """One of FAULTS in a line, as a TimingFault has it."""
    if isinstance(fault, CandidateFault):
        return f"{fault.kind.value}: {fault.message}"
    gpu_memory.give_back()  # where memory ran out, what failed may have left some
    return TimingFault.HARNESS + " ".join(str(fault).split())[:300]


@contextmanager
def _as_timing_fault() -> Iterator[None]:
    """What fails while a candidate is timed, in the search's own terms."""
    try:
        yield
    except FAULTS as fault:
        raise TimingFault(told(fault)) from None


class Instrument:
    """Implements `agent.lab.Lab` with an engine; search may reuse a worker, a final figure does not."""

    def __init__(
        self,
        engine: Engine,
        problem: Problem,
        hardware: Hardware,
        calibration: Calibration | None,
        rules: Protocol,
        save: Callable[[Candidate], Path],
        alone: Alone = nullcontext,
    ) -> None:
        """`save` puts a candidate's file where its gates' commands find it; `alone` is `measure_case`'s."""
        self.engine = engine
        self.problem = problem
        self.hardware = hardware
        self.calibration = calibration
        self.rules = rules
        self.save = save
        self.alone = alone
        self.verifier = Verifier(engine)
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def judge(
        self,
        candidate: Candidate,
        *,
        level: Level,
        cases: Sequence[Case],
        progress: Progress = lambda verdict: None,
    ) -> Judgement:
        """Run the gates on a saved candidate, cheapest first, up to the first failure."""
        path = self.save(candidate)
        return self.verifier.judge(candidate, cases, level=level, path=path, progress=progress)

    def compare(
        self, candidate: Candidate, incumbent: Candidate, cases: Sequence[Case]
    ) -> dict[str, Comparison]:
        """Paired timing by case id. Raises TimingFault."""
        result = dict[str, Comparison]()
        for case in cases:
            with _as_timing_fault():
                ours, theirs = self.time([candidate, incumbent], case)
            result[case.id] = Comparison(
                ratio=ours.ratio_to(theirs),
                candidate_us=ours.latency.median_us,
                incumbent_us=theirs.latency.median_us,
            )
        return result

    def measure(self, candidate: Candidate, cases: Sequence[Case]) -> dict[str, Latency]:
        """Latency by case id. Raises TimingFault."""
        with _as_timing_fault():
            return {case.id: self.time([candidate], case)[0].latency for case in cases}

    def bound(self, case: Case) -> Bound:
        """Roofline of one case on this machine."""
        cost = self.problem.cost(self.problem.shape(case))
        return bound(cost, self.hardware, self.calibration)

    def time(
        self, candidates: Sequence[Candidate], case: Case, rules: Protocol | None = None
    ) -> list[Timing]:
        """Interleaved timing of some candidates on one case. Raises one of FAULTS."""
        sessions = [self._session(candidate) for candidate in candidates]
        floor = self.bound(case).sol_us
        telemetry = gpu_telemetry(self.engine.device)
        return measure_case(sessions, case, rules or self.rules, telemetry, floor, self.alone)

    def bottlenecks(self, candidate: Candidate, case: Case, median_us: float) -> tuple[Bottleneck, ...]:
        """What a candidate of this measured time loses it to, the costliest first. Raises TimingFault."""
        return bottlenecks(self.profile(candidate, case, median_us), self.bound(case))

    def profile(self, candidate: Candidate, case: Case, median_us: float) -> Profile:
        """What a candidate of this measured time spends it on. Raises TimingFault."""
        known = (candidate, case, self.problem, median_us, self.hardware, self.calibration)
        if self.engine.device == "cpu":
            return collect.on_cpu(*known, threads=self.engine.threads)
        spec = InputSpec(shape=self.problem.shape(case), seed=new_seed())
        with _as_timing_fault():
            seen = watch(self._session(candidate), partial(self._behind, candidate), spec)
        return collect.on_cuda(*known, seen=seen)

    @contextmanager
    def _behind(self, candidate: Candidate, tool: tuple[str, ...]) -> Iterator[Session]:
        """A session in an engine of its own, whose workers a tool watches."""
        with Engine(self.engine.device, tool=tool) as engine, engine.session(candidate) as session:
            yield session

    def release(self) -> None:
        """End all warm workers, so that what follows starts from fresh processes."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def close(self) -> None:
        """End every worker; the engine is the caller's."""
        self.release()
        self.verifier.close()

    def _session(self, candidate: Candidate) -> Session:
        session = self._sessions.pop(candidate.id, None) or self.engine.session(candidate)
        self._sessions[candidate.id] = session
        while len(self._sessions) > _WARM_SESSIONS:
            self._sessions.popitem(last=False)[1].close()
        return session
