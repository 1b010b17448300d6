"""Verifying one candidate: the gates in order, and a judgement."""

from __future__ import annotations

import os
import shlex
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from atrex import gpu_memory
from atrex.candidate import Candidate
from atrex.errors import UsageError
from atrex.gates import GATE_NAMES, Gate, gates_for
from atrex.gates.context import EngineKind, GateContext, Level, Rejection, Undecided, make_plan
from atrex.judge import Engine, Session, new_seed
from atrex.lanes import Judge, Sessions, beside, in_turn
from atrex.problem import Problem, load_problem
from atrex.records import Case, FaultKind, Judgement, Status, Verdict

Progress = Callable[[Verdict], None]
_CORES = 4  # as many lanes as there are at most


@dataclass(slots=True)
class Verifier:
    """Runs gates on candidates; starts a sanitizing engine only when a gate asks for one.

    `beside`: gates run beside one another (`atrex.lanes`); by default on a GPU with some cores to spare.
    """

    engine: Engine
    beside: bool | None = None
    _sanitizing: Engine | None = field(default=None, init=False)

    def judge(
        self,
        candidate: Candidate,
        cases: Sequence[Case],
        *,
        level: Level = "full",
        gates: Sequence[str] = GATE_NAMES,
        seed: int | None = None,
        keep_going: bool = False,
        path: Path | None = None,
        problem: Problem | None = None,
        progress: Progress = lambda verdict: None,
    ) -> Judgement:
        """Run the gates, cheapest first, until one fails (or all with `keep_going`).

        `problem`: what to hold the candidate against, if not the problem of its operator.

        Raises UsageError for an unknown gate. Never raises for anything a candidate does.
        """
        problem = problem or load_problem(candidate.operator)
        own = {gate.name: gate for gate in gates_for(problem)}
        if unknown := set(gates) - set(own):
            raise UsageError(f"unknown gate {sorted(unknown)[0]!r}; known: {', '.join(own)}")
        whole = set(gates) >= set(GATE_NAMES)
        seed = new_seed() if seed is None else seed
        started = time.monotonic()
        verdicts = list[Verdict]()
        chosen = [gate for name, gate in own.items() if whole or name in gates]

        def judge(gate: Gate, sessions: Sessions) -> Verdict:
            return run_gate(gate, self._context(gate, sessions, cases, level, seed, path))

        with closing(self._run(chosen, candidate, problem, judge, level)) as running:
            for verdict in running:
                verdicts.append(verdict)
                progress(verdict)
                stop = verdict.status is not Status.PASS and not keep_going
                unusable = verdict.gate == "interface" and verdict.fault is FaultKind.IMPORT
                if stop or unusable:
                    break
        return Judgement(
            candidate=candidate.id,
            operator=candidate.operator,
            device=self.engine.device,
            level=level if whole else "partial",
            seed=seed,
            required=tuple(own),
            may_be_unsupported=problem.contract.may_be_unsupported,
            verdicts=tuple(verdicts),
            seconds=round(time.monotonic() - started, 3),
        )

    def __post_init__(self) -> None:
        if self.beside is None:
            self.beside = self.engine.device == "cuda" and (os.cpu_count() or 1) >= _CORES

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def sanitizing(self) -> Engine:
        """The engine whose workers run under a sanitizer. Raises EnvironmentProblem."""
        if self._sanitizing is None:
            self._sanitizing = Engine(
                self.engine.device, threads=self.engine.threads, sanitize=True, timeouts=self.engine.timeouts
            )
        return self._sanitizing

    def close(self) -> None:
        """End the sanitizing engine; the main engine is the caller's."""
        if self._sanitizing is not None:
            self._sanitizing.close()
            self._sanitizing = None

    def _run(
        self, gates: Sequence[Gate], candidate: Candidate, problem: Problem, judge: Judge, level: Level
    ) -> Generator[Verdict]:
        def sessions(lane: str) -> Sessions:
            return Sessions(self.engine, self.sanitizing, candidate, problem, lane)

        engine = engine_kind(self.engine, candidate)
        sanitizer = make_plan(level, engine).instrumented and engine != "interpreter"
        # A foreign reference may change settings of the whole process while it runs.
        how = beside if self.beside and problem.foreign is None else in_turn
        return how(gates, sessions, judge, sanitizer=sanitizer)

    def _context(
        self,
        gate: Gate,
        sessions: Sessions,
        cases: Sequence[Case],
        level: Level,
        seed: int,
        path: Path | None,
    ) -> GateContext:
        target = shlex.quote(str(path or f"{sessions.plain.candidate.id[:16]}.py"))
        argument, device = sessions.plain.problem.argument, self.engine.device
        command = f"atrex verify {target} {argument} --device {device} --level {level}"
        return gate_context(gate.name, sessions.plain, cases, level, seed, command, sessions.sanitized)


def gate_context(
    gate: str,
    session: Session,
    cases: Sequence[Case],
    level: Level,
    seed: int,
    command: str,
    sanitized: Callable[[], Session],
    factor: float = 1.0,
) -> GateContext:
    """One gate's view of the candidate of a session."""
    plan = make_plan(level, engine_kind(session.engine, session.candidate))
    return GateContext(gate, session, session.problem, cases, plan, seed, command, sanitized, factor)


def engine_kind(engine: Engine, candidate: Candidate) -> EngineKind:
    """How this candidate's kernels run here."""
    if engine.device == "cuda":
        return "cuda"
    return "interpreter" if candidate.dsl in ("triton", "gluon") else "native"


def run_gate(gate: Gate, context: GateContext) -> Verdict:
    """One gate's verdict; an exception of the harness is ERROR, never the candidate's failure."""
    started = time.monotonic()
    status, reason, witness, fault = Status.PASS, "", None, None
    try:
        if gate.name in context.problem.unjudged:
            raise Undecided(*context.problem.unjudged[gate.name])
        gate.run(context)
    except Rejection as rejection:
        status, reason, witness, fault = Status.FAIL, rejection.reason, rejection.witness, rejection.fault
        if fault is FaultKind.OUT_OF_MEMORY and (crowded := context.session.engine.crowded()):
            status, reason = Status.ERROR, f"harness: {crowded}; {reason}"
    except Undecided as undecided:
        status, reason = undecided.status, undecided.reason
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the harness's fault and is said so
        status, reason = Status.ERROR, _harness_error(error)
    finally:
        gpu_memory.give_back()  # a judge beside this one, or the next worker, may want it
    return Verdict(
        gate=gate.name,
        status=status,
        tolerance_free=gate.tolerance_free,
        reason=reason,
        fault=fault,
        witness=witness,
        metrics=context.metrics,
        seconds=round(time.monotonic() - started, 3),
    )


def _harness_error(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    text = " ".join(str(error).split())[:500]
    return f"harness: {type(error).__name__}: {text} ({Path(frame.filename).name}:{frame.lineno})"
