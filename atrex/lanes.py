"""Gates of one judgement, in turn or beside one another.

Most of a judgement on a GPU is waiting: for workers to start, for compilers, for the sanitizer. Gates that
call on small shapes and take long have a worker of their own there. A verdict that can be due to the
neighbours, who take memory and time, is not kept: the gate runs again when nothing else does, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Self

from atrex.candidate import Candidate
from atrex.errors import EnvironmentProblem
from atrex.gates import Gate
from atrex.judge import CandidateFault, Engine, HarnessError, Session, Stopped
from atrex.problem import Problem
from atrex.records import FaultKind, Status, Verdict

# Gates that are not in the main lane, by the lane in which they take turns.
APART = {"authenticity": "memory", "purity": "memory", "layouts": "layouts", "bounds": "bounds"}
_OF_NEIGHBOURS = {FaultKind.OUT_OF_MEMORY, FaultKind.TIMEOUT}

Judge = Callable[[Gate, "Sessions"], Verdict]


class Sessions:
    """A candidate's plain session, and on demand one under a sanitizer; a context manager."""

    def __init__(
        self,
        engine: Engine,
        sanitizing: Callable[[], Engine],
        candidate: Candidate,
        problem: Problem,
        lane: str = "",
    ) -> None:
        self.plain = engine.session(candidate, problem, lane)
        self._sanitizing = sanitizing
        self._checked: Session | None = None
        self._stopped = False

    def sanitized(self) -> Session:
        """The session under a sanitizer. Raises EnvironmentProblem, or Stopped."""
        if self._checked is None:
            self._checked = self._sanitizing().session(self.plain.candidate, self.plain.problem)
        if self._stopped:  # while the sanitizer's server started
            raise Stopped
        return self._checked

    def warm(self) -> None:
        """Start the sanitizer's worker early; what is wrong with it is said when it is used."""
        with suppress(EnvironmentProblem, CandidateFault, HarnessError, Stopped):
            session = self.sanitized()
            if session.engine.device == "cuda":
                session.engine.check_cuda()
            session.load()

    def stop(self) -> None:
        """End the workers for good, from another thread."""
        self._stopped = True
        for session in (self.plain, self._checked):
            if session is not None:
                session.stop()

    def close(self) -> None:
        """Kill the workers."""
        for session in (self.plain, self._checked):
            if session is not None:
                session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def in_turn(
    gates: Sequence[Gate], sessions: Callable[[str], Sessions], judge: Judge, *, sanitizer: bool
) -> Generator[Verdict]:
    """Yield the gates' verdicts, each run when it is asked for.

    `sanitizer`: whether the gate bounds will want one. Its worker compiles while the first gate's does, and
    nothing else runs beside it.
    """
    first, *rest = gates
    with sessions("") as ours, ThreadPoolExecutor(1) as aside:
        warm = aside.submit(ours.warm) if sanitizer and any(gate.name == "bounds" for gate in rest) else None
        yield judge(first, ours)
        if warm is not None:
            warm.result()
        for gate in rest:
            yield judge(gate, ours)


def beside(
    gates: Sequence[Gate], sessions: Callable[[str], Sessions], judge: Judge, *, sanitizer: bool
) -> Generator[Verdict]:
    """Yield the gates' verdicts in order; all but the first gate run in lanes beside one another.

    Closing the iterator ends what still runs. `sanitizer`: whether the gate bounds will want one.
    """
    first, *rest = gates
    lanes = {name: _Lane(sessions(name)) for name in {"", *(APART.get(gate.name, "") for gate in rest)}}
    main = lanes[""]
    try:
        if sanitizer and "bounds" in lanes:
            lanes["bounds"].warm()
        yield judge(first, main.sessions)
        running = {gate.name: lanes[APART.get(gate.name, "")].judge(judge, gate) for gate in rest}
        for gate in rest:
            verdict = running[gate.name].result()
            if verdict.status is Status.ERROR or verdict.fault in _OF_NEIGHBOURS:
                wait(running.values())
                for lane in lanes.values():
                    lane.sessions.close()
                again = judge(gate, main.sessions)
                verdict = again.model_copy(
                    update={"metrics": {**again.metrics, "judged_again_after": verdict.reason[:160]}}
                )
            yield verdict
    finally:
        for lane in lanes.values():
            lane.stop()
        for lane in lanes.values():
            lane.close()


class _Lane:
    """A thread, and the sessions that it alone uses."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="gates")

    def warm(self) -> None:
        """Have the sanitizer's worker started."""
        self._thread.submit(self.sessions.warm)

    def judge(self, judge: Judge, gate: Gate) -> Future[Verdict]:
        """Have a gate run after what was asked for before."""
        return self._thread.submit(judge, gate, self.sessions)

    def stop(self) -> None:
        """Let nothing more begin, and end what runs."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self.sessions.stop()

    def close(self) -> None:
        """Wait for the thread, and close its sessions."""
        self._thread.shutdown(wait=True)
        self.sessions.close()
