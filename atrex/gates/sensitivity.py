"""sensitivity: every input matters, at every scale; exact relations hold exactly."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from atrex.contract import PowerOfTwo, RowPermutation
from atrex.gates.context import GateContext
from atrex.inputs import bits, permutation
from atrex.protocol import Edit
from atrex.records import InitValue, Shape


def run(ctx: GateContext) -> None:
    """Directed inputs and init values off their defaults, then the contract's relations."""
    for shape in ctx.representatives():
        for name in ctx.problem.probes.get("sensitivity", {}):
            ctx.check(shape, name, source=name)
        for init in init_values(ctx):
            ctx.check(ctx.problem.with_init(shape, **init), f"init {init}", source=ctx.rich_source)
        if ctx.plan.level == "screen" and ctx.problem.elements(shape) > ctx.plan.judged_elements:
            continue  # moving whole large tensors is left to the full level
        for relation in ctx.problem.contract.relations:
            if isinstance(relation, RowPermutation):
                _permutation(ctx, shape)
            else:
                _power_of_two(ctx, shape, relation)


def init_values(ctx: GateContext) -> list[dict[str, InitValue]]:
    """Constructor values at both ends of their domain and between; every choice and both truths."""
    values = list[dict[str, InitValue]]()
    for name, spec in ctx.problem.spec.init.items():
        if spec.type == "float" and spec.min is not None and spec.max is not None:
            values += [{name: spec.max}, {name: spec.max / 64}]
            values += [{name: spec.min}] if ctx.plan.level == "full" else []
        values += [{name: choice} for choice in spec.choices]
        values += [{name: truth} for truth in (False, True) if spec.type == "bool"]
    return values


def _permutation(ctx: GateContext, shape: Shape) -> None:
    spec = ctx.spec(shape, source=ctx.rich_source)
    seed, outputs = ctx.new_seed(), ctx.problem.row_outputs()
    edits = tuple(Edit(kind="permute_rows", input=name, seed=seed) for name in ctx.problem.row_inputs())
    moved = spec.model_copy(update={"edits": edits})
    plain, got = ctx.call(spec).outputs, ctx.call(moved).outputs
    order = permutation(shape.dims[str(ctx.problem.rows)], seed)
    expected = dict[str, Tensor]()
    for name in outputs:
        raw = bits(plain[name])
        expected[name] = raw[order.to(raw.device)].view(plain[name].dtype)
    ctx.require_same_bits(moved, {name: got[name] for name in outputs}, expected, "rows permuted")


def _power_of_two(ctx: GateContext, shape: Shape, relation: PowerOfTwo) -> None:
    spec = ctx.spec(shape, source=ctx.rich_source)
    init = ctx.problem.full(shape).init
    plain = ctx.call(spec).outputs
    small = ctx.problem.elements(shape) <= ctx.plan.judged_elements
    exponents = relation.exponents if ctx.plan.level == "full" and small else relation.exponents[1:2]
    for k in exponents:
        edits = tuple(Edit(kind="scale", input=n, exponent=k * power) for n, power in relation.scale.items())
        values = {n: float(cast(float, init[n])) * 2.0 ** (k * power) for n, power in relation.init.items()}
        rescaled = ctx.problem.with_init(shape, **values)
        scaled = spec.model_copy(update={"edits": edits, "shape": rescaled})
        got = ctx.call(scaled).outputs
        expected = {n: _ldexp(plain[n], k * power) for n, power in relation.output.items()}
        ctx.require_same_bits(scaled, {n: got[n] for n in expected}, expected, f"scaled by 2^{k}")


def _ldexp(value: Tensor, exponent: int) -> Tensor:
    """Exact scaling; the contract keeps exponents within the normal range of the dtype."""
    return torch.ldexp(value.double(), torch.tensor(exponent, device=value.device)).to(value.dtype)
