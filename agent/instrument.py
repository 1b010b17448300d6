"""The instrument on this machine, as the search sees it: judging, paired timing, bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agent.lab import Comparison, Level, TimingFault
from atrex.candidate import Candidate
from atrex.judge import CandidateFault, Engine, Session
from atrex.measure import Protocol, Timing, measure_case
from atrex.problem import Problem
from atrex.records import Bound, Case, Judgement, Latency
from atrex.roofline import Calibration, Hardware, bound
from atrex.telemetry import gpu_telemetry
from atrex.verify import Verifier

_WARM_SESSIONS = 3  # incumbent, candidate and one more keep their workers, and what they compiled


@contextmanager
def _as_timing_fault() -> Iterator[None]:
    """A candidate that fails while it is timed, in the search's own terms."""
    try:
        yield
    except CandidateFault as fault:
        raise TimingFault(f"{fault.kind.value}: {fault.message}") from None


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
    ) -> None:
        self.engine = engine
        self.problem = problem
        self.hardware = hardware
        self.calibration = calibration
        self.rules = rules
        self.save = save
        self.verifier = Verifier(engine)
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def judge(self, candidate: Candidate, *, level: Level, cases: Sequence[Case]) -> Judgement:
        """Run the gates on a saved candidate, cheapest first, up to the first failure."""
        return self.verifier.judge(candidate, cases, level=level, path=self.save(candidate))

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
        """Interleaved timing of some candidates on one case. Raises CandidateFault."""
        sessions = [self._session(candidate) for candidate in candidates]
        floor = self.bound(case).sol_us
        return measure_case(sessions, case, rules or self.rules, gpu_telemetry(self.engine.device), floor)

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
