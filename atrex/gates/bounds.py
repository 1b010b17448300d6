"""bounds: no access outside the tensors, neither written nor read."""

from __future__ import annotations

from atrex.errors import EnvironmentProblem
from atrex.gates.context import GateContext, Rejection
from atrex.judge import CandidateFault
from atrex.protocol import Call, Fill
from atrex.records import FaultKind


def run(ctx: GateContext) -> None:
    """Guard bands around every tensor, and where the engine has it every access checked."""
    shapes = [*ctx.representatives(), *ctx.odd_shapes()]
    interpreted = ctx.plan.engine == "interpreter"
    fills: tuple[Fill, ...] = ("nan", "huge")
    for shape in shapes:
        spec = ctx.spec(shape, source=ctx.rich_source)
        plain = ctx.call(spec).outputs
        for fill in fills:
            guarded = spec.model_copy(update={"guard": fill})
            outcome = ctx.call(guarded, guard_outputs=True, poison=fill, check_addresses=interpreted)
            report = outcome.report
            if report.violations:
                raise Rejection(report.violations[0], ctx.witness(guarded))
            if report.broken_guards:
                names = ", ".join(report.broken_guards)
                raise Rejection(f"wrote outside of {names}", ctx.witness(guarded))
            what = f"guard bands of {fill} around every tensor"
            ctx.require_same_bits(guarded, outcome.outputs, plain, what)
        if ctx.plan.engine == "native":
            closed = ctx.call(spec, closed_pages=True)  # a wrong access ends the worker
            ctx.require_same_bits(spec, closed.outputs, plain, "closed pages around every input")
    ctx.metrics["checked"] = "every address" if interpreted else "guard bands"
    if ctx.plan.instrumented and not interpreted:
        _instrumented(ctx)


def _instrumented(ctx: GateContext) -> None:
    """The same calls under AddressSanitizer (C++) or compute-sanitizer (CUDA)."""
    try:
        session = ctx.sanitized()
        if session.engine.device == "cuda":
            session.engine.check_cuda()  # what the tool itself breaks is not the candidate's fault
        session.engine.sanitizer_finding()  # earlier candidates' are not this one's
    except EnvironmentProblem as error:
        ctx.metrics["sanitizer"] = f"not run: {error}"
        return
    try:
        session.load()
    except CandidateFault as fault:
        raise ctx.fault(fault, ctx.spec(ctx.odd_shapes()[0])) from None
    for shape in (*ctx.representatives(), *ctx.odd_shapes()):
        spec = ctx.spec(shape, source=ctx.rich_source)
        try:
            session.run(Call(inputs=spec, deliver=False))
        except CandidateFault as fault:
            if finding := session.engine.sanitizer_finding():
                raise Rejection(finding, ctx.witness(spec), FaultKind.ILLEGAL_ACCESS) from None
            raise ctx.fault(fault, spec) from None
        if finding := session.engine.sanitizer_finding():
            raise Rejection(finding, ctx.witness(spec), FaultKind.ILLEGAL_ACCESS)
    ctx.metrics["sanitizer"] = session.engine.sanitizer_name
