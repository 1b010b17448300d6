"""sensitivity: every input matters, at every scale; exact relations hold exactly."""

from __future__ import annotations

import torch
from torch import Tensor

from atrex.gates.context import GateContext
from atrex.inputs import permutation
from atrex.problem import PowerOfTwo, RowPermutation
from atrex.protocol import Edit


def run(ctx: GateContext) -> None:
    """Directed inputs and init values off their defaults, then the contract's relations."""
    shapes = ctx.representatives()
    for dims in shapes:
        for name in ctx.problem.module.PROBES.get("sensitivity", {}):
            ctx.check(dims, name, source=name)
        for init in _init_values(ctx):
            ctx.check(dims, f"init {init}", source=ctx.rich_source, init=init)
        if ctx.plan.level == "screen" and ctx.elements(dims) > ctx.plan.judged_elements:
            continue  # moving whole large tensors is left to the full level
        for relation in ctx.problem.contract.relations:
            if isinstance(relation, RowPermutation):
                _permutation(ctx, dims, relation)
            else:
                _power_of_two(ctx, dims, relation)


def _init_values(ctx: GateContext) -> list[dict[str, float | int | bool | str | None]]:
    """Constructor values at both ends of their domain and between."""
    values = list[dict[str, float | int | bool | str | None]]()
    for name, spec in ctx.problem.spec.init.items():
        if spec.type == "float" and spec.min is not None and spec.max is not None:
            values += [{name: spec.max}, {name: spec.max / 64}]
            values += [{name: spec.min}] if ctx.plan.level == "full" else []
    return values


def _permutation(ctx: GateContext, dims: dict[str, int], relation: RowPermutation) -> None:
    spec = ctx.spec(dims, source=ctx.rich_source)
    edit = Edit(kind="permute_rows", input=relation.input, seed=ctx.new_seed())
    moved = spec.model_copy(update={"edits": (edit,)})
    plain = ctx.call(spec).outputs[relation.output]
    order = permutation(plain.shape[0], edit.seed).to(plain.device)
    got = {relation.output: ctx.call(moved).outputs[relation.output]}
    ctx.require_same_bits(moved, got, {relation.output: plain[order]}, "rows permuted")


def _power_of_two(ctx: GateContext, dims: dict[str, int], relation: PowerOfTwo) -> None:
    spec = ctx.spec(dims, source=ctx.rich_source)
    plain = ctx.call(spec).outputs
    small = ctx.elements(dims) <= ctx.plan.judged_elements
    exponents = relation.exponents if ctx.plan.level == "full" and small else relation.exponents[1:2]
    for k in exponents:
        edits = tuple(Edit(kind="scale", input=n, exponent=k * power) for n, power in relation.scale.items())
        init = {n: float(spec.init[n] or 0) * 2.0 ** (k * power) for n, power in relation.init.items()}
        scaled = spec.model_copy(update={"edits": edits, "init": spec.init | init})
        got = ctx.call(scaled).outputs
        expected = {n: _ldexp(plain[n], k * power) for n, power in relation.output.items()}
        ctx.require_same_bits(scaled, {n: got[n] for n in expected}, expected, f"scaled by 2^{k}")


def _ldexp(value: Tensor, exponent: int) -> Tensor:
    """Exact scaling; the contract keeps exponents within the normal range of the dtype."""
    return torch.ldexp(value.double(), torch.tensor(exponent, device=value.device)).to(value.dtype)
