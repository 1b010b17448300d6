"""Judging a witnessed mutant: a plain allclose on production inputs, then the gates."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from atrex.audit.tasks import allclose
from atrex.gates import GATES
from atrex.gates.context import GateContext, Level
from atrex.inputs import build_inputs
from atrex.judge import Session, new_seed
from atrex.protocol import Call, InputSpec
from atrex.records import Case, Shape, Status, Verdict
from atrex.verify import Verifier, gate_context, run_gate

_ALLCLOSE_CASES = 3


@dataclass(frozen=True, slots=True)
class Judged:
    """What the gates said of a mutant."""

    killed: bool
    gate: str = ""  # that killed it
    level: str = ""
    reason: str = ""
    undecided: str = ""  # gates that did not pass it, without a verdict of their own
    broken: str = ""  # why a gate could not judge it, if none fails it


def context_for(
    session: Session, cases: Sequence[Case], level: Level, gate: str, verifier: Verifier, stack: ExitStack
) -> GateContext:
    """A gate's view of a session's candidate."""

    def sanitized() -> Session:
        return stack.enter_context(verifier.sanitizing().session(session.candidate))

    return gate_context(gate, session, cases, level, new_seed(), "atrex verify", sanitized)


def judge(session: Session, cases: Sequence[Case], verifier: Verifier) -> Judged:
    """All gates at a screening, then at the full level, up to the first that fails the mutant."""
    undecided, broken = dict[str, None](), ""
    with ExitStack() as stack:
        levels: tuple[Level, ...] = ("screen", "full")
        for level in levels:
            for gate in GATES:
                context = context_for(session, cases, level, gate.name, verifier, stack)
                verdict: Verdict = run_gate(gate, context)
                if verdict.status is Status.FAIL:
                    return Judged(True, gate.name, level, verdict.reason[:300], "; ".join(undecided))
                if verdict.status is Status.ERROR:
                    broken = broken or verdict.reason
                elif verdict.status is not Status.PASS:
                    undecided[f"{gate.name} {verdict.status.value}: {verdict.reason[:120]}"] = None
    return Judged(False, undecided="; ".join(undecided), broken=broken)


def production_shapes(context: GateContext) -> list[Shape]:
    """The shapes of some production cases, small, middle and large, as far as the engine can be asked for."""
    problem, shapes = context.problem, list[Shape]()
    cases = sorted(context.cases, key=lambda case: problem.elements(problem.shape(case)))
    last = len(cases) - 1
    for index in sorted({last * i // (_ALLCLOSE_CASES - 1) for i in range(_ALLCLOSE_CASES)}):
        shape = problem.shape(cases[index])
        if context.work(shape) > context.plan.small_work:
            shape = problem.shape(problem.small(cases[index]))
        if problem.rows is not None:
            shape = problem.resize(shape, **{problem.rows: context.fit_rows(shape)})
        if shape not in shapes:
            shapes.append(shape)
    return shapes


def plain_check(session: Session, shapes: Sequence[Shape]) -> str:
    """accepts or rejects: allclose with eager PyTorch on production inputs. Raises CandidateFault."""
    problem = session.problem
    for shape in shapes:
        spec = InputSpec(shape=shape, seed=new_seed())
        outputs = session.run(Call(inputs=spec, deliver_inputs=True))[0].outputs
        inputs, _ = build_inputs(problem, spec, session.engine.torch_device)
        expected = problem.reference(shape, inputs)
        if set(outputs) != set(expected) or not allclose(outputs, expected):
            return "rejects"
    return "accepts"
