"""What a gate works with: a session with the candidate, seeds, shapes, expectations and comparisons."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from atrex.contract import CASE_DTYPE, DimSpec
from atrex.gates.comparators import (
    IllConditionedError,
    Mismatch,
    bit_mismatch,
    class_mismatch,
    error_bound,
)
from atrex.gates.form import form_problem
from atrex.gates.outputs import judge_outputs, keep_worst
from atrex.inputs import as_contiguous, build_inputs, tile_rows_for, window_spec
from atrex.judge import CandidateFault, Outcome, Session
from atrex.problem import Expected, Problem
from atrex.protocol import Call, InputSpec
from atrex.records import Case, FaultKind, Scalar, Shape, Status, Witness

Level = Literal["screen", "full"]
_ODD = (1, 7, 129, 513, 1537, 4099, 40961)  # whose last tile is never full; the last takes a row in parts
EngineKind = Literal["cuda", "native", "interpreter"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of each property is looked at; never what counts as a failure."""

    level: Level
    engine: EngineKind
    small_work: float  # operations and bytes up to which a shape stands for its bucket as it is
    large_work: float  # and up to which a production case is judged as it is
    judged_elements: int  # elements per output that the judge compares in full; beyond, windows of rows
    called_elements: int  # elements per output that a candidate is asked for
    repeats: int  # runs of the determinism gate
    instrumented: bool  # AddressSanitizer or compute-sanitizer
    huge: bool  # more than 2^31 elements
    sweep: int  # how many of the off-grid shapes
    crossed: int  # calls at which everything is drawn together
    simple_work: float  # operations and bytes up to which a shape takes a moment, and is taken for these
    crossing: float  # how likely one thing more is unlike the usual, which may cost a compilation
    cases: int  # how many of the production cases, beside one in every bucket
    windows: int  # places in a large output, drawn after the call


def make_plan(level: Level, engine: EngineKind) -> Plan:
    """The plan of a level on an engine. The interpreter runs a thousand times slower: small shapes."""
    full = level == "full"
    judged = {"cuda": 1 << 28, "native": 1 << 20, "interpreter": 1 << 17}[engine]
    called = {"cuda": 1 << 31, "native": 1 << 30, "interpreter": 1 << 14}[engine]
    return Plan(
        level=level,
        engine=engine,
        small_work={"cuda": 1e10, "native": 2e8, "interpreter": 1e8}[engine],
        large_work={"cuda": math.inf, "native": 2e9, "interpreter": 1e8}[engine],
        judged_elements=judged,
        called_elements=called,
        repeats=10 if full else 4,
        instrumented=full,
        huge=full and engine != "interpreter",
        sweep=1000 if full else 8,
        crossed={"cuda": 48, "native": 100, "interpreter": 24}[engine] if full else 4,
        simple_work={"cuda": 1e9, "native": 1e7, "interpreter": 3e6}[engine],
        crossing=0.25 if engine == "cuda" else 0.5,
        cases=1000 if full else 6,
        windows=4 if full else 2,
    )


class Rejection(Exception):
    """The property does not hold; carries what the verdict will say."""

    def __init__(self, reason: str, witness: Witness | None = None, fault: FaultKind | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.witness = witness
        self.fault = fault


class Undecided(Exception):
    """A verdict other than PASS or FAIL, with its reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(slots=True)
class GateContext:
    """One gate's view of one candidate."""

    gate: str
    session: Session
    problem: Problem
    cases: Sequence[Case]
    plan: Plan
    seed: int
    command: str
    sanitized: Callable[
        [], Session
    ]  # a session whose memory accesses are checked; may raise EnvironmentProblem
    factor: float = 1.0  # of every error bound; other than 1 only to see what hangs on the bounds
    metrics: dict[str, Scalar] = field(default_factory=dict)
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.seed}/{self.gate}")

    # -- what to run ---------------------------------------------------------------------------

    def new_seed(self) -> int:
        """The next seed of this gate; the same judgement seed gives the same sequence."""
        return self.dice.randrange(1 << 48)

    def spec(self, shape: Shape, **changes: Any) -> InputSpec:
        """A recipe for inputs of this shape under a fresh seed."""
        rows = self.problem.rows
        # Drawing millions of values takes a CPU longer than the kernel does: there a block of rows repeats.
        if self.plan.engine == "native" and rows and not changes.get("edits"):
            changes.setdefault("tile_rows", tile_rows_for(shape.dims[rows], self.problem.width(shape)))
        return InputSpec(shape=shape, seed=changes.pop("seed", self.new_seed()), **changes)

    @property
    def rich_source(self) -> str:
        """Inputs in which every argument matters: a directed probe where the problem has one."""
        return next(iter(self.problem.probes.get("sensitivity", {})), "production")

    def representatives(self) -> list[Shape]:
        """A small shape of each bucket: a kernel may take another path in each, so all are looked at.

        Where rows are independent there are as few of them as keep the shape in its bucket (in the
        interpreter buckets of many rows are out of reach; there a few rows stand for all of them). What is
        still too large for the engine is reduced as the problem reduces it. With them come the problem's
        `paths`, and the simplest shape in each dtype that none of them has.
        """
        problem, rows = self.problem, self.problem.rows
        cuts = dict(problem.spec.buckets)
        if self.plan.engine == "interpreter":
            cuts.pop(str(rows), None)
        smallest: dict[tuple[int, ...], Shape] = {}
        for case in self.cases:
            full = self._with_enough(problem.shape(case))
            key = tuple(sum(full.dims[name] > cut for cut in steps) for name, steps in cuts.items())
            shape = self._reduced(case, full, cuts)
            if key not in smallest or self._simpler(shape, smallest[key]):
                smallest[key] = shape
        shapes = [*smallest.values(), *problem.paths()]
        known = {shape.dtype for shape in shapes}
        others = [dtype for dtype in self.dtypes if dtype not in known]
        simplest = min(shapes, key=problem.elements)
        return distinct([*shapes, *(simplest.model_copy(update={"dtype": dtype}) for dtype in others)])

    @property
    def dtypes(self) -> tuple[str, ...]:
        """What a case may want its inputs in; an output's dtype alone follows from the constructor."""
        spec = self.problem.spec
        return spec.case_dtypes if any(i.dtype == CASE_DTYPE for i in spec.inputs.values()) else ()

    def _with_enough(self, shape: Shape) -> Shape:
        """The shape without what is there in plenty, unless something needs so many."""
        limits = {name: dim.enough for name, dim in self.problem.spec.dims.items() if dim.enough is not None}
        fewer = {name: most for name, most in limits.items() if shape.dims[name] > most}
        if not fewer:
            return shape
        try:
            return self.problem.resize(shape, **fewer)
        except ValueError:
            return shape

    def _simpler(self, shape: Shape, other: Shape) -> bool:
        """Fewer elements, but not at the price of rows: of a single one nothing can be told from another."""
        rows = self.problem.rows
        few = [-min(each.dims[rows], 5) if rows else 0 for each in (shape, other)]
        sizes = [self.problem.elements(each) for each in (shape, other)]
        return (few[0], sizes[0]) < (few[1], sizes[1])

    def smallest(self) -> Shape:
        """A shape for what takes many calls: the smallest of the representatives, with a few rows."""
        shape = min(self.representatives(), key=self.problem.elements)
        rows = self.problem.rows
        return shape if rows is None else self.problem.resize(shape, **{rows: min(shape.dims[rows], 5)})

    def _reduced(self, case: Case, full: Shape, cuts: dict[str, tuple[int, ...]]) -> Shape:
        """A production shape with few rows, and reduced in all if the engine cannot be asked for more."""
        problem, rows = self.problem, self.problem.rows
        if rows is None:
            whole = self.plan.engine == "cuda" and self.work(full) <= self.plan.small_work
            return full if whole else problem.shape(problem.small(case))
        edges = (0, *cuts.get(rows, ()))
        least = 5 if rows not in cuts else max(edge for edge in edges if edge < max(full.dims[rows], 1)) + 37
        least = min(full.dims[rows], least)
        shape = problem.resize(full, **{rows: least})
        if self.work(shape) > self.plan.small_work:
            shape = problem.resize(problem.shape(problem.small(case)), **{rows: least})
        return problem.resize(shape, **{rows: self.fit_rows(shape)})

    def odd_shapes(self) -> list[Shape]:
        """Shapes whose last tile is never full: those the problem names, else odd extents of all kinds."""
        if named := self.problem.odd():
            most = self.plan.called_elements
            if self.plan.level == "full":  # in the interpreter these take seconds each
                most = max(most, self.plan.judged_elements)
            fitting = [shape for shape in named if self.problem.elements(shape) <= most]
            return fitting or [min(named, key=self.problem.elements)]
        base, rows = self.representatives()[0], self.problem.rows
        shapes = list[Shape]()
        for i, extent in enumerate(_ODD):
            free = {
                name: nearest_legal(legal, (1, 3, 5)[i % 3] if name == rows else extent)
                for name, legal in self.problem.spec.dims.items()
            }
            shapes.append(self.problem.resize(base, **free))
        return [s if rows is None else self.problem.resize(s, **{rows: self.fit_rows(s)}) for s in shapes]

    def sample(self, cases: Sequence[Case]) -> list[Case]:
        """All cases, or as many as the plan looks at, drawn afresh."""
        if len(cases) <= self.plan.cases:
            return list(cases)
        return self.dice.sample(list(cases), self.plan.cases)

    def fit_rows(self, shape: Shape, rows: int | None = None) -> int:
        """Rows of a shape, or as many as wanted, reduced so that the engine can be asked for them."""
        assert self.problem.rows is not None
        wanted = shape.dims[self.problem.rows] if rows is None else rows
        return self.problem.fitting_rows(shape, wanted, self.plan.called_elements)

    def work(self, shape: Shape) -> float:
        """Operations of a call plus bytes of its tensors: roughly what it takes to draw and judge it."""
        held = sum(self.problem.nbytes(tensor, shape) for tensor in self.problem.tensors)
        return sum(self.problem.cost(shape).flops.values()) + held

    def windowed(self, shape: Shape) -> bool:
        """Whether outputs are too large to compare whole, and can be looked at through windows of rows."""
        return self.problem.elements(shape) > self.plan.judged_elements and self.problem.rows is not None

    # -- running -------------------------------------------------------------------------------

    def call(self, spec: InputSpec, session: Session | None = None, **options: Any) -> Outcome:
        """One call whose outputs have the declared form. Raises Rejection otherwise."""
        return self.calls([Call(inputs=spec, **options)], session)[0]

    def calls(self, calls: Sequence[Call], session: Session | None = None) -> list[Outcome]:
        """Several calls in a row in one process."""
        try:
            outcomes = (session or self.session).run(*calls)
        except CandidateFault as fault:
            raise self.fault(fault, calls[-1].inputs) from None
        for call, outcome in zip(calls, outcomes, strict=True):
            if problem := form_problem(self.problem, call.inputs, outcome.report):
                raise Rejection(problem, self.witness(call.inputs))
            if call.deliver and set(outcome.outputs) != set(self.problem.spec.outputs):
                raise Rejection("an output is no strided tensor", self.witness(call.inputs))
        return outcomes

    def fault(self, fault: CandidateFault, spec: InputSpec) -> Rejection:
        """A crash or an exception as a rejection."""
        return Rejection(f"{fault.kind.value}: {fault.message}", self.witness(spec), fault.kind)

    def inputs(self, spec: InputSpec) -> dict[str, Tensor]:
        """The values of a recipe, drawn here, contiguous and without guard bands."""
        plain = spec.model_copy(update={"layouts": {}, "guard": None})
        return as_contiguous(build_inputs(self.problem, plain, self.session.engine.torch_device)[0])

    # -- comparing -----------------------------------------------------------------------------

    def require_accurate(self, spec: InputSpec, outputs: dict[str, Tensor], what: str = "") -> None:
        """Every output right as its declaration says. Raises Rejection or Undecided."""
        try:
            found, metrics = judge_outputs(
                self.problem, spec.shape, self.inputs(spec), outputs, factor=self.factor
            )
        except IllConditionedError as error:
            reason = f"{spec.label() or 'production inputs'}: {error}"
            raise Undecided(Status.INCONCLUSIVE, reason) from None
        keep_worst(self.metrics, metrics)
        if found:
            raise self.mismatch(spec, *found, what)

    def require_same_bits(
        self, spec: InputSpec, got: dict[str, Tensor], expected: dict[str, Tensor], what: str
    ) -> None:
        """Bit equality of every output. Raises Rejection."""
        for name, value in expected.items():
            if mismatch := bit_mismatch(got[name], value):
                raise self.mismatch(spec, name, mismatch, what)

    def require_classes(self, spec: InputSpec, outputs: dict[str, Tensor], what: str) -> None:
        """NaN, infinities and signs of zeros wherever eager and oracle agree on them. Raises Rejection."""
        inputs = self.inputs(spec)
        eager, oracle = self.problem.following(spec.shape, inputs, outputs)
        signed = self.problem.contract.signed_zeros
        for name, got in outputs.items():
            if not got.is_floating_point() or name not in oracle or got.shape != eager[name].shape:
                continue
            leeway = self._leeway(name, spec.shape, oracle[name], got.dtype)
            value, terms = oracle[name].value, oracle[name].terms
            if mismatch := class_mismatch(got, eager[name], value, leeway, terms, signed_zeros=signed):
                raise self.mismatch(spec, name, mismatch, what)

    def _leeway(self, name: str, shape: Shape, expected: Expected, dtype: torch.dtype) -> Tensor | None:
        """How near zero a number must be to come out as one; None: nothing but zero may.

        Of a `checked` output the oracle knows one right answer of several, and not how far others may be.
        """
        compare = self.problem.spec.outputs[name].compare
        if compare == "exact":
            return None
        if compare == "checked":
            return torch.full_like(expected.value, torch.inf)
        return error_bound(expected, dtype, self.problem.precision(name, shape))

    def check(self, shape: Shape, what: str = "", **changes: Any) -> None:
        """Call on inputs of this shape and require accuracy; large ones by windows of rows."""
        spec = self.spec(shape, **changes)
        if not self.windowed(shape):
            self.require_accurate(spec, self.call(spec).outputs, what)
            return
        for part, outputs in self.windows(spec):
            self.require_accurate(part, outputs, what)

    def windows(
        self, spec: InputSpec, extra: Sequence[int] = ()
    ) -> Iterator[tuple[InputSpec, dict[str, Tensor]]]:
        """Call on many rows made of one repeated block; yield blocks of rows with their own recipe.

        Rows near the start, the end, `extra`, and at places drawn after the call are looked at.
        """
        assert self.problem.rows is not None
        rows = spec.dims[self.problem.rows]
        width = self.problem.width(spec.shape)
        tile = spec.tile_rows or tile_rows_for(rows, width) or rows
        tiled = spec.model_copy(update={"tile_rows": tile})
        self.call(tiled, deliver=False)
        count = max(1, min(rows, 64, self.plan.judged_elements // width))
        last = rows - count
        starts = [0, last, *(min(last, max(0, row - count // 2)) for row in extra)]
        starts += [self.dice.randrange(last + 1) for _ in range(self.plan.windows)]
        for start in sorted(set(starts)):
            part = window_spec(self.problem, tiled, start, count)
            try:
                outputs = self.session.fetch(start, start + count)
            except CandidateFault as fault:
                raise self.fault(fault, spec) from None
            yield part, outputs

    def witness(self, spec: InputSpec, output: str = "", mismatch: Mismatch | None = None) -> Witness:
        """Where it happened and how to see it again."""
        return Witness(
            case=spec.shape.label(),
            seed=self.seed,
            transform=spec.label(),
            output=output,
            index=mismatch.index if mismatch else (),
            expected=mismatch.expected if mismatch else "",
            got=mismatch.got if mismatch else "",
            command=f"{self.command} --gate {self.gate} --seed {self.seed}",
        )

    def mismatch(self, spec: InputSpec, output: str, mismatch: Mismatch, what: str) -> Rejection:
        """A failed comparison as a rejection."""
        where = f"{what}: " if what else ""
        inputs = f" on {spec.label()}" if spec.label() else ""
        return Rejection(f"{where}{output} {mismatch.what}{inputs}", self.witness(spec, output, mismatch))


def nearest_legal(legal: DimSpec, extent: int) -> int:
    """The legal extent nearest to a wanted one."""
    step = legal.multiple_of
    least, most = -(-legal.min // step) * step, legal.max // step * step
    return min(most, max(least, round(extent / step) * step))


def distinct(shapes: Iterable[Shape]) -> list[Shape]:
    """Shapes without their repetitions, in order."""
    found = list[Shape]()
    for shape in shapes:
        if shape not in found:
            found.append(shape)
    return found
