"""What a call may not do besides giving its result: change its inputs, or a result that was given before."""

from __future__ import annotations

from torch import Tensor

from atrex.gates.comparators import bit_mismatch
from atrex.gates.context import GateContext, Rejection
from atrex.inputs import build_inputs
from atrex.judge import Outcome
from atrex.protocol import InputSpec


def untouched(ctx: GateContext, spec: InputSpec, outcome: Outcome) -> None:
    """The inputs after the call, as the worker sent them, against the judge's own draw. Raises Rejection."""
    drawn, _ = build_inputs(ctx.problem, spec, ctx.session.engine.torch_device)
    if set(outcome.inputs) != set(drawn):
        raise Rejection("its worker does not say what became of the inputs", ctx.witness(spec))
    for name, after in outcome.inputs.items():
        if name in ctx.problem.contract.updates:
            continue
        if mismatch := bit_mismatch(after, drawn[name]):
            raise ctx.mismatch(spec, name, mismatch, "input changed by the call")


def still_there(
    ctx: GateContext, spec: InputSpec, outcome: Outcome, expected: dict[str, Tensor], what: str
) -> None:
    """What a call returned, some calls later. Raises Rejection."""
    held = returned(ctx, outcome.held)
    ctx.require_same_bits(spec, held, {name: expected[name] for name in held}, what)


def returned(ctx: GateContext, outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without states that a call updates: those lie in its inputs."""
    updated = ctx.problem.contract.updates.values()
    return {name: value for name, value in outputs.items() if name not in updated}
