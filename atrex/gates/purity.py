"""purity: inputs stay untouched, results stay what they were, and nothing is remembered between calls."""

from __future__ import annotations

import math

from torch import Tensor

from atrex.gates.aftermath import returned, still_there, untouched
from atrex.gates.choice import widest_of
from atrex.gates.comparators import bit_mismatch
from atrex.gates.context import GateContext, Rejection
from atrex.inputs import negations, touches
from atrex.judge import Outcome
from atrex.protocol import SPECIALS, Call, Edit, InputSpec
from atrex.records import Shape

_MANY = 100
_HELD = 16  # results that are kept through many calls: a candidate may hand out so many buffers in turn
# Where the next inputs lie, as the fields of `Call` that say so.
_PLACES: dict[str, dict[str, bool]] = {
    "at other addresses": {},
    "at the same addresses": {"same_buffers": True},
    "in new tensors at the same addresses": {"same_buffers": True, "new_tensors": True},
}


def run(ctx: GateContext) -> None:
    """f(a), f(b), f(a) at other and at the same addresses; special values; many calls, then a change.

    f(b) and some of the many results are kept meanwhile: no later call may change them.
    """
    touched = list[tuple[InputSpec, dict[str, Tensor]]]()
    for shape in ctx.representatives():
        a = ctx.spec(shape, source=ctx.rich_source)
        b = ctx.spec(shape, source=ctx.rich_source)
        for where, place in _PLACES.items():
            calls = [
                Call(inputs=a, fresh_model=True, deliver_inputs=True),
                Call(inputs=b, deliver_inputs=True, hold=not place).model_copy(update=place),
                Call(inputs=a, deliver_inputs=True).model_copy(update=place),
            ]
            first, second, third = ctx.calls(calls)
            still_there(ctx, b, second, second.outputs, "f(b), kept through another call")
            ctx.require_same_bits(a, third.outputs, first.outputs, f"f(a) after f(b) {where}")
            _require_another(ctx, b, first, second)
            alone = ctx.call(b, fresh_model=True)
            ctx.require_same_bits(b, second.outputs, alone.outputs, f"f(b) after f(a) {where}")
            for spec, outcome in ((a, first), (b, second), (a, third)):
                untouched(ctx, spec, outcome)
        if not ctx.windowed(shape):
            _with_specials(ctx, shape)
            touched.append(_after_a_touch(ctx, a))
    wide = ctx.spec(widest_of(ctx, ctx.odd_shapes()), source=ctx.rich_source)
    untouched(ctx, wide, ctx.call(wide, deliver_inputs=True))
    ctx.session.close()  # what a module remembers goes with its process
    for spec, outputs in touched:
        _same_elsewhere(ctx, spec, outputs, ctx.call(spec).outputs, "one element changed in place")
    _same_elsewhere(ctx, b, second.outputs, ctx.call(b).outputs, "f(b) after f(a), against another process")
    _after_many(ctx, ctx.smallest())


def _after_many(ctx: GateContext, shape: Shape) -> None:
    """Many calls on the same contents, then a change in place: a memory may take its time to act.

    One element in each input, which a look at some of the contents does not see, twice; then, in another
    process, since a memory that notices may give up, one row.
    """
    a = ctx.spec(shape, source=ctx.rich_source)
    again = Call(inputs=a, same_buffers=True, deliver=False)
    kept = again.model_copy(update={"hold": True})
    once, twice = (touches(ctx.problem, shape, ctx.dice) for _ in range(2))
    rows = negations(ctx.problem, shape, ctx.dice)
    changed = [a.model_copy(update={"edits": edits}) for edits in (once, twice, rows)]
    # In a process that has not seen `a`, and not in those below: else what is remembered of one is what the
    # other should give.
    alone = [ctx.call(spec) for spec in changed]
    plain = ctx.call(a).outputs
    for some in (slice(0, 2), slice(2, 3)):
        ctx.session.close()
        calls = [kept.model_copy(update={"same_buffers": False}), *[kept] * (_HELD - 1)]
        calls += [again] * (_MANY - _HELD)
        calls += [call for spec in changed[some] for call in (Call(inputs=spec, same_buffers=True), again)]
        outcomes = ctx.calls(calls)
        first = plain | returned(ctx, outcomes[0].held)
        _same_elsewhere(ctx, a, first, plain, "f(a), kept through many calls")
        for outcome in outcomes[:_HELD]:
            still_there(ctx, a, outcome, first, "f(a), kept through many calls")
        for spec, last, expected in zip(changed[some], outcomes[_MANY::2], alone[some], strict=True):
            what = f"changed in place after {_MANY} calls"
            _same_elsewhere(ctx, spec, last.outputs, expected.outputs, what)


def _after_a_touch(ctx: GateContext, a: InputSpec) -> tuple[InputSpec, dict[str, Tensor]]:
    """f(a), and then what a call gives after one element of each input was changed in place."""
    changed = a.model_copy(update={"edits": touches(ctx.problem, a.shape, ctx.dice)})
    calls = Call(inputs=a, deliver=False), Call(inputs=changed, same_buffers=True)
    return changed, ctx.calls(calls)[1].outputs


def _with_specials(ctx: GateContext, shape: Shape) -> None:
    """A call on inputs that hold every special value: a kernel may clean up only what it dislikes."""
    for name in ctx.problem.contract.specials:
        size = math.prod(ctx.problem.tensor_shape(ctx.problem.spec.inputs[name], shape))
        count = min(size, len(SPECIALS))
        at = tuple(i * size // count for i in range(count))
        edit = Edit(kind="place", input=name, at=at, values=SPECIALS[:count])
        spec = ctx.spec(shape, source=ctx.rich_source, edits=(edit,))
        untouched(ctx, spec, ctx.call(spec, deliver_inputs=True))


def _same_elsewhere(
    ctx: GateContext, spec: InputSpec, got: dict[str, Tensor], elsewhere: dict[str, Tensor], what: str
) -> None:
    """Against another process, where a kernel that chooses by timing may round otherwise: then accuracy."""
    if any(bit_mismatch(got[name], value) for name, value in elsewhere.items()):
        ctx.require_accurate(spec, got, what)


def _require_another(ctx: GateContext, spec: InputSpec, first: Outcome, second: Outcome) -> None:
    """Other inputs, other results: a memory keyed by shape would give the same, also when asked alone."""
    same = [bit_mismatch(value, first.outputs[name]) is None for name, value in second.outputs.items()]
    if all(same) and sum(value.numel() for value in second.outputs.values()) > 8:
        raise Rejection("f(b) after f(a): the outputs are f(a) again", ctx.witness(spec))
