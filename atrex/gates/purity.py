"""purity: inputs stay untouched, and nothing is remembered between calls."""

from __future__ import annotations

from atrex.gates.comparators import bit_mismatch
from atrex.gates.context import GateContext, Rejection
from atrex.inputs import build_inputs
from atrex.judge import Outcome
from atrex.protocol import Call, InputSpec


def run(ctx: GateContext) -> None:
    """f(a), f(b), f(a) at other addresses; then a, b, a at the same addresses; then one parameter redrawn."""
    for dims in ctx.representatives():
        a = ctx.spec(dims, source=ctx.rich_source)
        b = ctx.spec(dims, source=ctx.rich_source)
        for same in (False, True):
            calls = [
                Call(inputs=a, fresh_model=not same, deliver_inputs=True),
                Call(inputs=b, same_buffers=same, deliver_inputs=True),
                Call(inputs=a, same_buffers=same, deliver_inputs=True),
            ]
            first, second, third = ctx.calls(calls)
            where = "at the same addresses" if same else "at other addresses"
            ctx.require_same_bits(a, third.outputs, first.outputs, f"f(a) after f(b) {where}")
            _require_another(ctx, b, first, second)
            alone = ctx.call(b, fresh_model=True)
            ctx.require_same_bits(b, second.outputs, alone.outputs, f"f(b) after f(a) {where}")
            for spec, outcome in ((a, first), (b, second), (a, third)):
                _untouched(ctx, spec, outcome)


def _require_another(ctx: GateContext, spec: InputSpec, first: Outcome, second: Outcome) -> None:
    """Other inputs, other results: a memory keyed by shape would give the same, also when asked alone."""
    for name, value in second.outputs.items():
        if value.numel() > 8 and bit_mismatch(value, first.outputs[name]) is None:
            raise Rejection(f"f(b) after f(a): {name} is f(a) again", ctx.witness(spec, name))


def _untouched(ctx: GateContext, spec: InputSpec, outcome: Outcome) -> None:
    """The inputs after the call, as the worker sent them, against the judge's own draw."""
    drawn, _ = build_inputs(ctx.problem, spec, ctx.session.engine.torch_device)
    for name, after in outcome.inputs.items():
        if mismatch := bit_mismatch(after, drawn[name]):
            raise ctx.mismatch(spec, name, mismatch, "input changed by the call")
