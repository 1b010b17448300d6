"""moe_sum_reduce: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: expert_outputs [T, k, H] bf16, out [T, H] bf16. Formula: routed_scaling_factor * sum over k, in fp32,
rounded once: the last step of a mixture-of-experts layer, whose router weights are already applied.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 25  # elements at a time: 256 MiB of fp64


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: N(0, 0.02), as activations elsewhere (operators.md names no other)."""
    return {"expert_outputs": draw.normal(_extent(draw), 0.02, torch.bfloat16)}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: the sum widens as it reads, without an fp32 copy."""
    terms = inputs["expert_outputs"]
    total = terms.sum(1, dtype=torch.float32)
    return {"out": (total * init["routed_scaling_factor"]).to(terms.dtype)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, a block of tokens at a time; `terms` is the same sum over magnitudes."""
    experts, factor = inputs["expert_outputs"], init["routed_scaling_factor"]
    rows, count, hidden = experts.shape
    value, terms = (torch.empty((rows, hidden), dtype=torch.float64, device=experts.device) for _ in range(2))
    step = max(1, _ORACLE_CHUNK // (count * hidden))
    for start in range(0, rows, step):
        part = slice(start, start + step)
        block = experts[part].double()
        value[part] = block.sum(1) * factor
        terms[part] = block.abs_().sum(1) * abs(factor)
    return {"out": Expected(value, terms)}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes: k - 1 additions and the product with the factor per element of `out`."""
    rows, count, hidden = (shape.dims[name] for name in ("token_count", "top_k", "hidden_size"))
    return Cost(
        flops={"fp32": float(rows * count * hidden)},
        read_bytes=2 * rows * count * hidden,
        write_bytes=2 * rows * hidden,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few tokens of the same width and number of experts."""
    return init, {**input, "token_count": min(input["token_count"], 13)}


def _extent(draw: Draw) -> tuple[int, int, int]:
    return draw.dims["token_count"], draw.dims["top_k"], draw.dims["hidden_size"]


def _in_one_slot(draw: Draw, value: float) -> Tensor:
    """`value` at one of the k terms of each element, at every one of them in turn; 0 elsewhere."""
    rows, count, hidden = _extent(draw)
    turn = torch.arange(rows, device=draw.device)[:, None] + torch.arange(hidden, device=draw.device)
    slots = torch.arange(count, device=draw.device)[:, None]
    return torch.where(turn[:, None] % count == slots, value, 0.0)


def uneven_experts(draw: Draw) -> dict[str, Tensor]:
    """Terms of size 1 about a level of its own for each expert: none may be missed or counted twice."""
    rows, count, hidden = _extent(draw)
    level = draw.normal((rows, count, 1), 1.0, torch.float32)
    return {"expert_outputs": (draw.normal((rows, count, hidden), 1.0, torch.float32) + level).bfloat16()}


def one_expert(draw: Draw) -> dict[str, Tensor]:
    """All of a sum in one term, each in turn, beside terms 2^-12 as large."""
    rest = draw.normal(_extent(draw), 2.0**-12, torch.float32)
    return {"expert_outputs": (_in_one_slot(draw, 1.0) + rest).to(torch.bfloat16)}


def uneven_rows(draw: Draw) -> dict[str, Tensor]:
    """Tokens whose scales differ by powers of two from 2^-20 to 2^20, far beyond fp16."""
    scale = torch.exp2((draw.uniform((draw.dims["token_count"], 1, 1)) * 41).floor() - 20)
    return {"expert_outputs": (draw.normal(_extent(draw), 1.0, torch.float32) * scale).to(torch.bfloat16)}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """One term of 256 among terms below 1, whose sum must be counted: each alone is lost in 8 bits."""
    rest = 0.5 + draw.uniform(_extent(draw)) * 0.48
    return {"expert_outputs": torch.where(_in_one_slot(draw, 1.0) == 1, 256.0, rest).to(torch.bfloat16)}


def cancelling(draw: Draw) -> dict[str, Tensor]:
    """Pairs of terms that cancel exactly, in any order of the experts, and leave the small ones as the sum.

    The pairs are 2^9 times as large: 8 significand bits lose what is added in between, 24 keep it.
    """
    rows, count, hidden = _extent(draw)
    rest = draw.normal((rows, count, hidden), 1.0, torch.float32)
    pairs = count // 2
    large = (draw.normal((rows, pairs, hidden), 512.0, torch.bfloat16)).float()
    order = draw.permutation(count)
    rest[:, order[:pairs]] = large
    rest[:, order[pairs : 2 * pairs]] = -large
    if pairs:  # one pair gives way to small terms, so that the sum is not nothing
        rest[:, order[[0, pairs]]] = draw.normal((rows, 2, hidden), 1.0, torch.float32)
    return {"expert_outputs": rest.to(torch.bfloat16)}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "cancelling": cancelling},
    "sensitivity": {
        "uneven_experts": uneven_experts,
        "one_expert": one_expert,
        "uneven_rows": uneven_rows,
    },
}
