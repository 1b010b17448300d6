"""Judging a foreign kernel: its problems inferred or read, then the same gates as for any candidate."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atrex.candidate import Candidate, detect_dsl
from atrex.errors import UsageError
from atrex.foreign.client import Referee, UnusableReference
from atrex.foreign.infer import infer, operator_name
from atrex.foreign.messages import Source
from atrex.foreign.module import make_problem
from atrex.foreign.spec import Entry, ForeignProblem, Unjudged
from atrex.gates import GATE_NAMES
from atrex.gates.context import Level, Undecided, make_plan
from atrex.judge import Engine
from atrex.problem import Problem
from atrex.records import Case, Dsl, Judgement, Verdict
from atrex.verify import Verifier, engine_kind

# CUDA C++ that PyTorch's extensions compile: its kernels have no names that are known to be the candidate's.
EXTENSIONS = ("load_inline", "cpp_extension", "import cupy", "from cupy", "CUDAExtension")
_INTERPRETED = 1 << 18  # elements of a call that the interpreter can be asked for a hundred times
Progress = Callable[[Verdict], None]


@dataclass(frozen=True, slots=True)
class Settings:
    """How much to look at."""

    level: Level = "full"
    gates: Sequence[str] = GATE_NAMES
    seed: int | None = None
    keep_going: bool = False


def candidate_entry(source: str, reference: Entry) -> Entry:
    """What to call in a kernel's file, seen from its text only (it is not run here).

    A class ModelNew or Model, or a function of the reference's name, `kernel_function` or `run`. A file
    with none of them is left to the worker, which says so.
    """
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        body = []
    classes = {node.name for node in body if isinstance(node, ast.ClassDef)}
    names = {node.name for node in body if isinstance(node, ast.FunctionDef)}
    names |= {
        t.id for node in body if isinstance(node, ast.Assign) for t in node.targets if isinstance(t, ast.Name)
    }
    if reference.kind == "arrays":
        return reference
    if reference.kind == "function":
        wanted = (reference.name, "kernel_function")
        if found := next((name for name in wanted if name in names), None):
            return Entry(kind="function", name=found)
    if found := next((name for name in ("ModelNew", "Model") if name in classes), None):
        return reference.model_copy(update={"kind": "model", "name": found})
    if reference.kind == "model":
        return reference.model_copy(update={"name": "ModelNew"})
    return reference


@contextmanager
def problems(
    engine: Engine,
    title: str,
    source: Source,
    kernel: str,
    argument: str,
    contract: ForeignProblem | None = None,
) -> Iterator[list[Problem]]:
    """The problems of a reference for this kernel: inferred, or the one that is given.

    Raises UnusableReference.
    """
    name = operator_name(title, source.text)
    referee = Referee(engine, source, name)
    try:
        description = referee.describe()
        assert description.entry is not None
        entry = candidate_entry(kernel, description.entry)
        try:
            found = infer(referee, name, entry)
        except Undecided as undecided:
            raise UnusableReference(undecided.reason) from None
        if contract is not None:
            _require_same_tensors(contract, found)
            found = [contract.model_copy(update={"entry": entry})]
        yield [make_problem(_for(problem, kernel), referee, argument) for problem in found]
    finally:
        referee.close()


def _for(problem: ForeignProblem, kernel: str) -> ForeignProblem:
    """The problem as it is for this kernel: whose kernels ran is not seen of an extension."""
    if not any(word in kernel for word in EXTENSIONS):
        return problem
    reason = "kernels of a PyTorch extension cannot be told from a library's"
    why = Unjudged(status="INCONCLUSIVE", reason=reason)
    return problem.model_copy(update={"unjudged": problem.unjudged | {"authenticity": why}})


def _require_same_tensors(contract: ForeignProblem, found: Sequence[ForeignProblem]) -> None:
    """An edited contract must be one for this reference."""
    wanted = list(contract.problem.inputs), list(contract.problem.outputs)
    if all((list(one.problem.inputs), list(one.problem.outputs)) != wanted for one in found):
        known = "; ".join(f"{list(one.problem.inputs)} -> {list(one.problem.outputs)}" for one in found)
        raise UsageError(f"the contract is for {wanted[0]} -> {wanted[1]}, the reference has {known}")


def judge(
    engine: Engine,
    problem: Problem,
    kernel: str,
    settings: Settings,
    *,
    dsl: Dsl | None = None,
    path: Path | None = None,
    progress: Progress = lambda verdict: None,
) -> Judgement:
    """All gates on one kernel for one problem."""
    candidate = Candidate(problem.operator, dsl or detect_dsl(kernel), kernel)
    return judge_candidate(engine, candidate, problem, problem.module.cases(), settings, path, progress)


def judge_candidate(
    engine: Engine,
    candidate: Candidate,
    problem: Problem,
    cases: Sequence[Case],
    settings: Settings,
    path: Path | None = None,
    progress: Progress = lambda verdict: None,
) -> Judgement:
    """All gates on one candidate, of which nothing is left behind."""
    try:
        with Verifier(engine) as verifier:
            return verifier.judge(
                candidate,
                cases,
                level=settings.level,
                gates=settings.gates,
                seed=settings.seed,
                keep_going=settings.keep_going,
                path=path,
                problem=problem,
                progress=progress,
            )
    finally:
        engine.forget(candidate)


def too_large(engine: Engine, problem: Problem, kernel: str) -> str:
    """Why this engine cannot be asked for the problem's calls; empty if it can."""
    candidate = Candidate(problem.operator, detect_dsl(kernel), kernel)
    kind = engine_kind(engine, candidate)
    most = _INTERPRETED if kind == "interpreter" else make_plan("full", kind).called_elements
    elements = max(problem.elements(problem.shape(case)) for case in problem.module.cases())
    if elements <= most:
        return ""
    return f"its calls have {elements} elements, more than the {most} that the {kind} engine can be asked for"
