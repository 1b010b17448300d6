"""gradients: each input's right on its own, exactly linear in what comes from above, the same every run."""

from __future__ import annotations

from torch import Tensor

from atrex.gates.comparators import IllConditionedError, Mismatch, accuracy_mismatch, bit_mismatch
from atrex.gates.context import GateContext, Rejection, Undecided, distinct
from atrex.gates.outputs import keep_worst
from atrex.gradient import eager_gradient, expected_gradient, upstream
from atrex.judge import CandidateFault
from atrex.problem import Precision, Problem
from atrex.protocol import Call, GradientRequest, InputSpec
from atrex.records import Shape, Status

# Elements of a tensor, which the oracle differentiates 33 times: of any shape, and of one that is cut for it.
_MOST = {"screen": 1 << 16, "full": 1 << 20}
_CUT = 1 << 16


def run(ctx: GateContext) -> None:
    """Each input that the contract lists, in every bucket and at odd shapes."""
    judged = 0
    for shape in _shapes(ctx):
        judged += sum(_check(ctx, shape, name) for name in ctx.problem.contract.gradients)
    if not judged:
        reason = "no shape is small enough, or eager autograd is too far from the oracle on all"
        raise Undecided(Status.INCONCLUSIVE, reason)
    ctx.metrics["gradients"] = judged


def _shapes(ctx: GateContext) -> list[Shape]:
    """A quick look takes the two largest: in a sum over few rows a wrong accumulator can pass by luck."""
    problem, most = ctx.problem, _MOST[ctx.plan.level]
    buckets = [
        shape if problem.elements(shape) <= most else _cut(problem, shape) for shape in ctx.representatives()
    ]
    every = distinct([*buckets, *ctx.odd_shapes()])
    fitting = [shape for shape in every if 0 < problem.elements(shape) <= most]
    return fitting if ctx.plan.level == "full" else sorted(fitting, key=problem.elements)[-2:]


def _cut(problem: Problem, shape: Shape) -> Shape:
    """The shape with as many rows as a quick look can differentiate."""
    if (rows := problem.rows) is None:
        return shape
    return problem.resize(shape, **{rows: problem.fitting_rows(shape, shape.dims[rows], _CUT)})


def _check(ctx: GateContext, shape: Shape, name: str) -> bool:
    """Whether the values could be judged; where a gradient all but vanishes (a row of one), they cannot."""
    problem, spec = ctx.problem, ctx.spec(shape, source=ctx.rich_source)
    wanted = GradientRequest(inputs=(name,), seed=ctx.new_seed())
    got = _gradients(ctx, spec, wanted)[name]
    inputs = ctx.inputs(spec)
    _require_form(ctx, spec, name, got, inputs[name])
    given = upstream(problem, shape, wanted.seed, ctx.session.engine.torch_device)
    expected = expected_gradient(problem, shape, inputs, given, name)
    eager = eager_gradient(problem, shape, inputs, given, name)
    judged = True
    try:
        # A zero that a difference leaves has the sign of its roundings, which no formula names.
        precision = Precision("fp64", 1, 0)
        mismatch, metrics = accuracy_mismatch(got, eager, expected, precision, signed_zeros=False)
        keep_worst(ctx.metrics, metrics)
        _require(ctx, spec, name, mismatch, "")
    except IllConditionedError:
        judged = False
    doubled = _gradients(ctx, spec, wanted.model_copy(update={"scale": 2.0}))[name]
    _require(
        ctx, spec, name, bit_mismatch(doubled, 2 * got), "of twice the upstream gradient, against twice it"
    )
    if problem.contract.deterministic:
        again = _gradients(ctx, spec, wanted)[name]
        _require(ctx, spec, name, bit_mismatch(again, got), "of the same call again")
    return judged


def _gradients(ctx: GateContext, spec: InputSpec, wanted: GradientRequest) -> dict[str, Tensor]:
    """What the candidate gives, by input. Raises Rejection, or Undecided where it offers none."""
    try:
        outcome = ctx.session.run(Call(inputs=spec, gradients=wanted))[0]
    except CandidateFault as fault:
        raise ctx.fault(fault, spec) from None
    if outcome.report.structure == "none":
        raise Undecided(Status.UNSUPPORTED, "the outputs have no gradient")
    if missing := sorted(set(wanted.inputs) - set(outcome.outputs)):
        raise Rejection(f"no gradient of {missing[0]}", ctx.witness(spec))
    return outcome.outputs


def _require_form(ctx: GateContext, spec: InputSpec, name: str, got: Tensor, like: Tensor) -> None:
    if got.shape != like.shape or got.dtype != like.dtype:
        found, right = (f"{list(t.shape)} {t.dtype}" for t in (got, like))
        raise Rejection(f"the gradient of {name} is {found}, not {right}", ctx.witness(spec))


def _require(ctx: GateContext, spec: InputSpec, name: str, mismatch: Mismatch | None, what: str) -> None:
    if mismatch:
        raise ctx.mismatch(spec, f"gradient of {name}", mismatch, what)
