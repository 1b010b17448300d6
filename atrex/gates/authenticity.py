"""authenticity: the candidate's own kernel does the work, on the stream it was given, all of it."""

from __future__ import annotations

from torch import Tensor

from atrex.fallback.coverage import can_withhold, unaccounted, written_by_others
from atrex.fallback.operations import permitted
from atrex.gates.context import GateContext, Rejection
from atrex.judge import CandidateFault
from atrex.protocol import Call, InputSpec, LaunchReport

_MOST_UNACCOUNTED = 0.5  # of a call's time on a CPU; on a GPU every kernel is seen


def run(ctx: GateContext) -> None:
    """Trace a call in every bucket, and make one in which its kernels do nothing.

    On CUDA also read the result without waiting for other streams.
    """
    own = set[str]()
    for shape in ctx.representatives():
        spec = ctx.spec(shape, source=ctx.rich_source)
        try:
            launches = ctx.session.trace(spec)
        except CandidateFault as fault:
            raise ctx.fault(fault, spec) from None
        own |= _require_own_work(ctx, spec, launches)
        plain = ctx.call(spec).outputs
        if can_withhold(launches, ctx.session.engine.device, ctx.session.candidate.source):
            _require_own_results(ctx, ctx.spec(shape, source=ctx.rich_source), plain)
        if ctx.session.engine.device == "cuda":
            aside = ctx.calls([Call(inputs=spec, side_stream=True)])[0].outputs
            what = "read on the caller's stream, without waiting for others"
            ctx.require_same_bits(spec, aside, plain, what)
    ctx.metrics["kernels"] = ", ".join(sorted(own))


def _require_own_results(ctx: GateContext, spec: InputSpec, before: dict[str, Tensor]) -> None:
    """No output comes out the same when the candidate's kernels do nothing; `before`: on other inputs."""
    try:
        others = written_by_others(ctx.session, spec, ctx.inputs(spec), before)
    except CandidateFault as fault:
        raise ctx.fault(fault, spec) from None
    if others:
        reason = f"its own kernels do not make {', '.join(others)}: the same bits come out without them"
        raise Rejection(reason, ctx.witness(spec))
    if ctx.session.engine.device == "cpu" and (share := unaccounted(ctx.session, spec)) > _MOST_UNACCOUNTED:
        reason = f"{share:.0%} of a call's time is neither its own kernels' nor an operation's of PyTorch"
        raise Rejection(reason, ctx.witness(spec))


def _require_own_work(ctx: GateContext, spec: InputSpec, launches: tuple[LaunchReport, ...]) -> set[str]:
    """No library compute, at least one own kernel, one stream. Returns the own kernels' names."""
    allowed = ctx.problem.contract.library_calls
    by_library = [launch for launch in launches if launch.origin == "compute"]
    for launch in launches:
        if launch.origin == "compute" and not permitted(launch.name, allowed):
            raise Rejection(f"PyTorch computes: {launch.name}", ctx.witness(spec))
        if launch.origin == "library" and not by_library:  # else one of those that the contract allows
            raise Rejection(f"a library kernel computes: {launch.name[:120]}", ctx.witness(spec))
    own = [launch for launch in launches if launch.origin == "own"]
    if not own:
        raise Rejection("none of the candidate's own kernels was launched", ctx.witness(spec))
    streams = {launch.stream for launch in own if launch.device_us > 0}
    if len(streams) > 1:
        raise Rejection(f"kernels ran on {len(streams)} streams", ctx.witness(spec))
    on_device = [launch for launch in own if launch.device_us > 0]
    if ctx.session.engine.device == "cuda" and not on_device:
        raise Rejection("none of the candidate's own kernels ran on the GPU", ctx.witness(spec))
    return {launch.name for launch in own}
