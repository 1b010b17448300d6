"""What a gate works with: a session with the candidate, seeds, shapes, expectations and comparisons."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from atrex.gates.comparators import (
    IllConditionedError,
    Mismatch,
    accuracy_mismatch,
    bit_mismatch,
    class_mismatch,
)
from atrex.inputs import as_contiguous, build_inputs, first_dim, tile_rows_for, window_spec
from atrex.judge import CandidateFault, Outcome, Session
from atrex.problem import Expected, Problem
from atrex.protocol import Call, CallReport, InputSpec
from atrex.records import Case, FaultKind, Scalar, Status, Witness

Level = Literal["screen", "full"]
EngineKind = Literal["cuda", "native", "interpreter"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of each property is looked at; never what counts as a failure."""

    level: Level
    engine: EngineKind
    judged_elements: int  # elements per output that the judge compares in full; beyond, windows of rows
    called_elements: int  # elements per output that a candidate is asked for
    repeats: int  # runs of the determinism gate
    instrumented: bool  # AddressSanitizer or compute-sanitizer
    huge: bool  # more than 2^31 elements
    sweep: int  # how many of the off-grid shapes
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
        judged_elements=judged,
        called_elements=called,
        repeats=10 if full else 4,
        instrumented=full,
        huge=full and engine != "interpreter",
        sweep=1000 if full else 8,
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
    metrics: dict[str, Scalar] = field(default_factory=dict)
    dice: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.dice = random.Random(f"{self.seed}/{self.gate}")

    # -- what to run ---------------------------------------------------------------------------

    def new_seed(self) -> int:
        """The next seed of this gate; the same judgement seed gives the same sequence."""
        return self.dice.randrange(1 << 48)

    def spec(self, dims: dict[str, int], **changes: Any) -> InputSpec:
        """A recipe for inputs of these dimensions under a fresh seed."""
        init = self.problem.init(changes.pop("init", {}))
        if self.plan.engine == "native" and self.problem.row_independent and not changes.get("edits"):
            rows = first_dim(self.problem)  # drawing millions of values would take longer than the kernel
            changes.setdefault("tile_rows", tile_rows_for(dims[rows], self.elements(dims | {rows: 1})))
        return InputSpec(init=init, dims=dims, seed=changes.pop("seed", self.new_seed()), **changes)

    @property
    def rich_source(self) -> str:
        """Inputs in which every argument matters: a directed probe where the problem has one."""
        return next(iter(self.problem.module.PROBES.get("sensitivity", {})), "production")

    def representatives(self) -> list[dict[str, int]]:
        """One production shape in each bucket, with no more rows than keep it there.

        A kernel may take another path in each bucket, so a property is looked at in every one. In the
        interpreter buckets of many rows are out of reach; there a few rows stand for all of them.
        """
        rows = first_dim(self.problem)
        cuts = dict(self.problem.spec.buckets)
        edges = (0, *cuts.get(rows, ()))
        if self.plan.engine == "interpreter":
            cuts.pop(rows, None)
        smallest: dict[tuple[int, ...], dict[str, int]] = {}
        for case in self.cases:
            dims = self.problem.dims(case)
            key = tuple(sum(dims[name] > cut for cut in steps) for name, steps in cuts.items())
            least = 5 if rows not in cuts else max(e for e in edges if e < max(dims[rows], 1)) + 37
            dims[rows] = self.fit_rows(dims, min(dims[rows], least))
            if key not in smallest or self.elements(dims) < self.elements(smallest[key]):
                smallest[key] = dims
        return list(smallest.values())

    def sample(self, cases: Sequence[Case]) -> list[Case]:
        """All cases, or as many as the plan looks at, drawn afresh."""
        if len(cases) <= self.plan.cases:
            return list(cases)
        return self.dice.sample(list(cases), self.plan.cases)

    def fit_rows(self, dims: dict[str, int], rows: int) -> int:
        """Rows reduced so that the engine can be asked for them."""
        name = first_dim(self.problem)
        other = max(1, self.elements(dims | {name: 1}))
        return max(1, min(rows, self.plan.called_elements // other)) if rows else 0

    def elements(self, dims: dict[str, int]) -> int:
        """Elements of the largest declared tensor at these dimensions."""
        spec = self.problem.spec
        shapes = [tensor.shape for tensor in spec.inputs.values()]
        shapes += [tensor.shape for tensor in spec.outputs.values()]
        return max(math.prod([dims[dim] for dim in shape]) for shape in shapes)

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

    def expected(self, spec: InputSpec) -> tuple[dict[str, Tensor], dict[str, Expected]]:
        """Eager reference and fp64 oracle, computed here from the same recipe."""
        plain = spec.model_copy(update={"layouts": {}, "guard": None})
        inputs, _ = build_inputs(self.problem, plain, self.session.engine.torch_device)
        inputs = as_contiguous(inputs)
        module = self.problem.module
        return module.reference(spec.init, inputs), module.oracle(spec.init, inputs)

    # -- comparing -----------------------------------------------------------------------------

    def require_accurate(self, spec: InputSpec, outputs: dict[str, Tensor], what: str = "") -> None:
        """Every output within its componentwise bound. Raises Rejection or Undecided."""
        eager, oracle = self.expected(spec)
        for name, got in outputs.items():
            try:
                mismatch, metrics = accuracy_mismatch(
                    got, eager[name], oracle[name], self.problem.contract, spec.dims
                )
            except IllConditionedError as error:
                raise Undecided(
                    Status.INCONCLUSIVE, f"{spec.label() or 'production inputs'}: {error}"
                ) from None
            self._keep_worst(metrics)
            if mismatch:
                raise self.mismatch(spec, name, mismatch, what)

    def require_same_bits(
        self, spec: InputSpec, got: dict[str, Tensor], expected: dict[str, Tensor], what: str
    ) -> None:
        """Bit equality of every output. Raises Rejection."""
        for name, value in expected.items():
            if mismatch := bit_mismatch(got[name], value):
                raise self.mismatch(spec, name, mismatch, what)

    def require_classes(self, spec: InputSpec, outputs: dict[str, Tensor], what: str) -> None:
        """NaN, infinities and signs of zeros wherever eager and oracle agree on them. Raises Rejection."""
        eager, oracle = self.expected(spec)
        for name, got in outputs.items():
            if mismatch := class_mismatch(got, eager[name], oracle[name].value):
                raise self.mismatch(spec, name, mismatch, what)

    def check(self, dims: dict[str, int], what: str = "", **changes: Any) -> None:
        """Call on inputs of these dimensions and require accuracy; large ones by windows of rows."""
        spec = self.spec(dims, **changes)
        if self.elements(dims) <= self.plan.judged_elements or not self.problem.row_independent:
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
        name = first_dim(self.problem)
        rows = spec.dims[name]
        width = max(1, self.elements(spec.dims | {name: 1}))
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
        dims = ",".join(f"{name}={value}" for name, value in spec.dims.items())
        return Witness(
            case=dims,
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

    def _keep_worst(self, metrics: dict[str, Scalar]) -> None:
        for name, value in metrics.items():
            if isinstance(value, float):
                self.metrics[name] = max(value, float(self.metrics.get(name) or 0.0))


def form_problem(problem: Problem, spec: InputSpec, report: CallReport) -> str:
    """What is wrong with the structure, types and shapes that came back; empty if nothing is."""
    if report.structure != problem.spec.returns:
        return f"returned a {report.structure}, declared is a {problem.spec.returns}"
    names = tuple(output.name for output in report.outputs)
    if names != tuple(problem.spec.outputs):
        return f"returned outputs {names}, declared are {tuple(problem.spec.outputs)}"
    for output in report.outputs:
        shape = problem.output_shape(output.name, spec.dims)
        dtype = str(problem.output_dtype(output.name)).removeprefix("torch.")
        if output.python_type != "torch.Tensor":
            return f"{output.name} is a {output.python_type}, not a plain torch.Tensor"
        if output.shape != shape or output.dtype != dtype:
            return f"{output.name} is {output.dtype}{list(output.shape)}, declared is {dtype}{list(shape)}"
    return ""
