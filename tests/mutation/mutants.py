"""Honest kernels, found at run time, and the mutants that are made of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from atrex.candidate import Candidate, detect_dsl
from atrex.problem import Problem, load_problem
from atrex.records import Dsl
from tests.mutation import faults, faults_data
from tests.mutation.faults_cpp import cpp_faults
from tests.mutation.sites import Sites
from tests.mutation.source import Source

ROOT = Path(__file__).parents[2]
DSLS = ("triton", "cpp")
_IN_TRITON: dict[str, Callable[[Source], Sites]] = {
    "accumulator_dtype": faults_data.accumulator_dtype,
    "comparison_flip": faults.comparison_flip,
    "constant": faults.constant,
    "drop_addend": faults.drop_addend,
    "drop_clamp": faults.drop_clamp,
    "drop_eps": faults.drop_eps,
    "drop_mask": faults.drop_mask,
    "drop_rescale": faults.drop_rescale,
    "drop_scale": faults.drop_scale,
    "masked_value": faults.masked_value,
    "off_by_one": faults.off_by_one,
    "sign_flip": faults.sign_flip,
    "skip_chunk": faults_data.skip_chunk,
    "skip_rounding": faults_data.skip_rounding,
    "stale_index": faults_data.stale_index,
    "wrong_stride": faults_data.wrong_stride,
}
FAULTS = (*_IN_TRITON, "wrong_input")


@dataclass(frozen=True, slots=True)
class Kernel:
    """An honest kernel to make mutants of."""

    operator: str
    path: Path  # below the root of the repository
    dsl: Dsl
    source: str

    @property
    def name(self) -> str:
        """Unique among kernels."""
        shipped = "knowledge/" if self.path.parts[0] == "knowledge" else ""
        return f"{self.operator}/{shipped}{self.dsl}/{self.path.stem}"

    @property
    def candidate(self) -> Candidate:
        """The kernel as the judge takes it."""
        return Candidate(self.operator, self.dsl, self.source)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A kernel with one fault."""

    kernel: Kernel
    fault: str
    line: int
    column: int
    note: str
    source: str

    @property
    def id(self) -> str:
        """The same for the same fault at the same place of the same text."""
        digest = hashlib.sha256(self.source.encode()).hexdigest()[:6]
        return f"{self.kernel.name}:{self.line}:{self.column}:{self.fault}:{digest}"

    @property
    def candidate(self) -> Candidate:
        """The mutant as the judge takes it."""
        return Candidate(self.kernel.operator, self.kernel.dsl, self.source)


def honest_kernels(operators: Sequence[str], root: Path = ROOT) -> list[Kernel]:
    """The honest kernels of some operators that are in the repository now, by operator and file."""
    found = list[Kernel]()
    for operator in operators:
        for dsl in DSLS:
            places = root / "tests/honest" / operator / dsl, root / "knowledge/kernels" / dsl / operator
            for directory in places:
                found += [_kernel(operator, path, root) for path in sorted(directory.glob("*.py"))]
    return found


def _kernel(operator: str, path: Path, root: Path) -> Kernel:
    source = path.read_text(encoding="utf-8")
    return Kernel(operator, path.relative_to(root), detect_dsl(source), source)


def make_mutants(kernel: Kernel, chosen: Sequence[str] = FAULTS) -> list[Mutant]:
    """Every mutant of a kernel, in the order of its lines; no two of them have the same text.

    Raises SyntaxError if the kernel does not parse. What does not parse after a change is left out.
    """
    code = Source(kernel.source)
    found = dict[str, Mutant]()
    for fault in chosen:
        for node, note, edits in _sites(code, kernel, fault):
            text = code.apply(edits)
            if text == kernel.source or text in found or not _parses(text):
                continue
            line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", 0)
            found[text] = Mutant(kernel, fault, line, column, note, text)
    return sorted(found.values(), key=lambda mutant: (mutant.line, mutant.column, mutant.id))


def _sites(code: Source, kernel: Kernel, fault: str) -> Sites:
    if kernel.dsl == "cpp":
        return cpp_faults(code, fault)
    if fault == "wrong_input":
        return faults_data.wrong_input(code, twins(load_problem(kernel.operator)))
    return _IN_TRITON[fault](code)


def twins(problem: Problem) -> dict[str, tuple[str, ...]]:
    """For each input the others that are declared with its shape and dtype."""
    inputs = problem.spec.inputs
    return {
        name: tuple(other for other in inputs if other != name and _alike(problem, name, other))
        for name in inputs
    }


def _alike(problem: Problem, name: str, other: str) -> bool:
    a, b = problem.spec.inputs[name], problem.spec.inputs[other]
    return a.shape == b.shape and a.dtype == b.dtype


def _parses(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def sample(mutants: Sequence[Mutant], limit: int | None) -> list[Mutant]:
    """At most `limit` of them: one of each fault class in turn, the order within a class by hash."""
    if limit is None or len(mutants) <= limit:
        return list(mutants)
    chosen = list(_in_turn(mutants))[:limit]
    return [mutant for mutant in mutants if mutant in chosen]


def _in_turn(mutants: Sequence[Mutant]) -> Iterator[Mutant]:
    queues = dict[str, list[Mutant]]()
    for mutant in sorted(mutants, key=lambda m: hashlib.sha256(m.id.encode()).digest()):
        queues.setdefault(mutant.fault, []).append(mutant)
    while queues:
        for fault in sorted(queues):
            yield queues[fault].pop()
            if not queues[fault]:
                del queues[fault]
