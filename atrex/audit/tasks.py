"""The task audit: which trivial kernels a plain allclose on production inputs accepts, and what rejects them.

    audit = audit_operator(load_problem("rms_norm"), cases, device=torch.device("cpu"), small=True)
    audit.findings[0].verdict    # "rejected", "escapes", "equivalent", "does not run"

A kernel is wrong if it leaves the error bound on some source: production inputs, a probe, a shape or
constructor argument off the production grid under the rich probe (as the gates use it), or inputs that the
audit stirs itself. It escapes if only the last shows it: then the problem's probes have a gap.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

import psutil
import torch
from torch import Tensor

from atrex.audit.stirred import LEVELS, stirred
from atrex.audit.trivial import Outputs, Own, Trial, Trivial, load_shortcuts, trivial_kernels
from atrex.gates.comparators import IllConditionedError
from atrex.gates.outputs import judge_outputs
from atrex.inputs import draw_values
from atrex.problem import Problem
from atrex.protocol import InputSpec
from atrex.records import Case, InitValue, Record, Shape

ATOL, RTOL = 1e-2, 5e-2
_CHUNK = 1 << 24  # elements compared at a time
_MOST_ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 26}  # of the tensors that have rows, together
_WIDE = 96  # bytes an output element takes while it is judged: oracle, bound and errors in fp64

Verdict = Literal["rejected", "escapes", "equivalent", "does not run"]
_RAISES = (RuntimeError, ValueError, IndexError, KeyError, TypeError, AssertionError)


class Finding(Record):
    """What became of one trivial kernel of an operator."""

    kernel: str
    own: bool  # written by hand for the operator
    cases: int
    allclose: int  # cases on which allclose accepts it
    production: int  # cases on which the error bound rejects it on production inputs
    rejected: int  # cases on which production inputs or a probe reject it
    source: str  # that rejects it at last: where production inputs do not, the probe that does most often
    why: str  # what was said there
    verdict: Verdict

    @property
    def wrong(self) -> bool:
        """Whether it differs from the oracle anywhere."""
        return self.verdict in ("rejected", "escapes")


class OperatorAudit(Record):
    """The findings of one operator, and what was left out or cut."""

    op: str
    cases: int
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]


@dataclass
class _Tally:
    """What has been seen of one kernel so far."""

    cases: int = 0
    allclose: int = 0
    production: int = 0
    rejected: int = 0
    probes: Counter[str] = field(default_factory=Counter)
    said: dict[str, str] = field(default_factory=dict)  # source -> the first complaint there
    ran: bool = False
    error: str = ""

    @property
    def found(self) -> bool:
        """Whether a source of the problem rejects the kernel anywhere."""
        return bool(self.production or self.probes)

    @property
    def stirred(self) -> str:
        """The audit's own inputs on which the kernel is wrong, if there are such."""
        return next((level for level in LEVELS if level in self.said), "")

    def finding(self, kernel: Trivial) -> Finding:
        """The record."""
        verdict: Verdict = "rejected" if self.found else "equivalent" if self.ran else "does not run"
        source = max(self.probes, key=self.probes.__getitem__) if self.probes else ""
        source = source or ("production" if self.production else "")
        if not self.found and (stirring := self.stirred):
            verdict, source = "escapes", stirring
        return Finding(
            kernel=kernel.name,
            own=kernel.own,
            cases=self.cases,
            allclose=self.allclose,
            production=self.production,
            rejected=self.rejected,
            source=source,
            why=self.said.get(source, "" if self.ran else self.error),
            verdict=verdict,
        )


def audit_operator(
    problem: Problem,
    cases: Sequence[Case],
    *,
    device: torch.device,
    small: bool,
    shortcuts: Mapping[str, Own] | None = None,
    seed: int = 0,
) -> OperatorAudit:
    """Every trivial kernel on every case. `shortcuts` stands in for those of bench/<op>/shortcuts.py."""
    own = load_shortcuts(problem.operator) if shortcuts is None else shortcuts
    first = problem.shape(cases[0])
    audit = _Audit(problem, trivial_kernels(problem, own, first), device, seed)
    groups = dict[str, list[Case]]()  # cases that a small scale makes equal are looked at once
    shapes = dict[str, Shape]()
    for case in cases:
        shape = problem.shape(problem.small(case) if small else case)
        if (fitting := audit.fit(case.id, shape)) is not None:
            key = fitting.model_dump_json()
            shapes[key] = fitting
            groups.setdefault(key, []).append(case)
    for key, group in groups.items():
        audit.look(shapes[key], len(group))
    audit.leave_the_grid(tuple(shapes.values()))
    audit.stir(tuple(shapes.values()))
    findings = tuple(tally.finding(kernel) for kernel, tally in audit.tallies)
    return OperatorAudit(op=problem.operator, cases=len(cases), findings=findings, notes=tuple(audit.notes))


class _Audit:
    """The run over one operator's shapes."""

    def __init__(self, problem: Problem, kernels: Sequence[Trivial], device: torch.device, seed: int) -> None:
        self.problem, self.device, self.seed = problem, device, seed
        self.tallies = [(kernel, _Tally()) for kernel in kernels]
        self.notes = dict[str, None]()  # in order, each once
        self.sources = ["production"]
        for gate in sorted(problem.probes, key=lambda gate: gate != "sensitivity"):
            self.sources += problem.probes[gate]

    def fit(self, name: str, shape: Shape) -> Shape | None:
        """The shape with no more rows than can be compared; None where even that is too much for memory."""
        problem, rows = self.problem, self.problem.rows
        if rows is not None:
            tensors = [t for t in problem.tensors if t.shape[:1] == (rows,)]
            width = sum(math.prod(problem.tensor_shape(t, shape)[1:]) for t in tensors)
            most = max(1, _MOST_ELEMENTS[self.device.type] // max(1, width))
            if shape.dims[rows] > most:
                self.note(f"{name}: cut to {most} of {shape.dims[rows]} {rows}")
                shape = problem.resize(shape, **{rows: most})
        given = sum(problem.nbytes(tensor, shape) for tensor in problem.spec.inputs.values())
        outputs = [problem.tensor_shape(tensor, shape) for tensor in problem.spec.outputs.values()]
        need = 3 * given + _WIDE * sum(math.prod(extent) for extent in outputs)
        free = (
            torch.cuda.mem_get_info()[0] if self.device.type == "cuda" else psutil.virtual_memory().available
        )
        if need > free:
            self.note(f"{name}: skipped, needs about {need / 2**30:.1f} GiB of {free / 2**30:.1f} GiB free")
            return None
        return shape

    def note(self, text: str) -> None:
        """Something that a reader of the table must know."""
        self.notes[text] = None

    def look(self, shape: Shape, count: int) -> None:
        """Production inputs of a shape, then probe after probe for the kernels that still pass."""
        left = self.tallies
        for _, tally in left:
            tally.cases += count
        for source in self.sources:
            if not left:
                return
            with_trial = self._trial(shape, source)
            if with_trial is not None:
                left = [one for one in left if not self._rejects(*one, with_trial, count)]

    def leave_the_grid(self, shapes: Sequence[Shape]) -> None:
        """Odd shapes and constructor arguments under the rich probe, for the kernels that still pass."""
        rich = next(iter(self.problem.probes.get("sensitivity", {})), "production")
        inits = [self.problem.with_init(shape, **init) for shape in shapes[:1] for init in self._ends()]
        for shape in (*self.problem.odd(), *inits):
            left = [one for one in self.tallies if not one[1].found]
            for tally, said in self._complaints(shape, rich, left):
                tally.probes[f"{rich}, off the grid"] += 1
                tally.said[f"{rich}, off the grid"] = said

    def stir(self, shapes: Sequence[Shape]) -> None:
        """Inputs and constructor arguments of the audit's own, for the kernels that nothing has rejected."""
        others = [other for shape in shapes[:1] for other in self._other_inits(shape)]
        for shape, level in product((*shapes, *self.problem.odd(), *others), LEVELS):
            left = [one for one in self.tallies if not one[1].found and not one[1].stirred]
            for tally, said in self._complaints(shape, level, left):
                tally.said[level] = said

    def _complaints(
        self, shape: Shape, source: str, left: Sequence[tuple[Trivial, _Tally]]
    ) -> Iterator[tuple[_Tally, str]]:
        """Those of the kernels that one source rejects, with what is said of them."""
        if left and (trial := self._trial(shape, source)) is not None:
            for kernel, tally in left:
                outputs = self._run(kernel, tally, trial)
                if outputs is not None and (said := self._complaint(trial, outputs)):
                    yield tally, said

    def _ends(self) -> Iterator[dict[str, InitValue]]:
        """Constructor arguments as the sensitivity gate varies them."""
        for name, spec in self.problem.spec.init.items():
            values: list[InitValue] = [*spec.choices]
            if spec.type == "float" and spec.min is not None and spec.max is not None:
                values += [spec.max, spec.max / 64, spec.min]
            values += [False, True] if spec.type == "bool" else []
            yield from ({name: value} for value in values)

    def _other_inits(self, shape: Shape) -> Iterator[Shape]:
        """The shape with one constructor argument changed that no extent follows from."""
        for name, value in self.problem.full(shape).init.items():
            spec = self.problem.spec.init[name]
            if spec.type == "bool":
                yield self.problem.with_init(shape, **{name: not value})
            elif spec.type == "float" and isinstance(value, float | int) and value:
                up = spec.max is None or 4 * value <= spec.max
                yield self.problem.with_init(shape, **{name: 4 * value if up else value / 4})
            yield from (self.problem.with_init(shape, **{name: c}) for c in spec.choices if c != value)

    def _trial(self, shape: Shape, source: str) -> Trial | None:
        """Inputs on which the reference itself passes; None, and a note, where there are none."""
        seed = zlib.crc32(f"{self.seed} {shape.model_dump_json()} {source}".encode())
        try:
            draw = self._drawn(shape, source)
            trial = Trial(self.problem, shape, source, draw(seed), lambda: draw(seed + 1))
            said = self._complaint(trial, trial.eager)
        except IllConditionedError as error:
            said = str(error)
        except torch.OutOfMemoryError:
            said = "out of memory"
        if said:
            self.note(f"{source} at {shape.label()}: not used, the reference does not pass: {said}")
            return None
        return trial

    def _drawn(self, shape: Shape, source: str) -> Callable[[int], dict[str, Tensor]]:
        if source not in LEVELS:
            spec = InputSpec(shape=shape, seed=0, source=source)
            return lambda seed: draw_values(self.problem, spec.model_copy(update={"seed": seed}), self.device)

        def stir(seed: int) -> dict[str, Tensor]:
            generator = torch.Generator(device=self.device).manual_seed(seed)
            return stirred(self.problem, shape, source, generator)

        return stir

    def _rejects(self, kernel: Trivial, tally: _Tally, trial: Trial, count: int) -> bool:
        """Whether the error bound rejects the kernel here; the tally learns it, and what allclose says."""
        outputs = self._run(kernel, tally, trial)
        if outputs is None:
            return False
        production = trial.source == "production"
        if production and allclose(outputs, trial.eager):
            tally.allclose += count
        said = self._complaint(trial, outputs)
        if not said:
            return False
        tally.said.setdefault(trial.source, said)
        tally.rejected += count
        if production:
            tally.production += count
        else:
            tally.probes[trial.source] += count
        return True

    def _run(self, kernel: Trivial, tally: _Tally, trial: Trial) -> Outputs | None:
        """The kernel's outputs. It may not run: what it puts in an input's place need not be legal there."""
        try:
            outputs = kernel.make(trial)
        except _RAISES as error:
            tally.error = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
            return None
        tally.ran = True
        return outputs

    def _complaint(self, trial: Trial, outputs: Outputs) -> str:
        """What Atrex's own comparison says of outputs; empty if nothing."""
        try:
            finding, _ = judge_outputs(trial.known, trial.shape, trial.inputs, outputs)
        except torch.OutOfMemoryError:
            self.note(f"{trial.source} at {trial.shape.label()}: out of memory while judging")
            return ""
        if finding is None:
            return ""
        name, mismatch = finding
        return f"{name}: {mismatch.what}"


def allclose(outputs: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> bool:
    """The plain check: every output within 1e-2 plus 5e-2 of the eager reference's, a block at a time."""
    return all(_close(outputs[name], right) for name, right in expected.items())


def _close(got: Tensor, right: Tensor) -> bool:
    if got.shape != right.shape:
        return False
    return all(torch.allclose(a, b, rtol=RTOL, atol=ATOL) for a, b in _blocks(got, right))


def _blocks(got: Tensor, right: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    flat, other = got.reshape(-1), right.reshape(-1)
    wide = torch.float32 if got.is_floating_point() else torch.int64
    for start in range(0, flat.numel(), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield flat[part].to(wide), other[part].to(wide)
