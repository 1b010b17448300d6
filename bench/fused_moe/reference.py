"""fused_moe: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: hidden_states [T, H] bf16, w1 [E, 2I, H] bf16 (I gate rows, then I up rows), w2 [E, H, I] bf16,
topk_weights [T, k] fp32, topk_ids [T, k] int32, out [T, H] fp32. Formula: gated linear units (Shazeer, "GLU
Variants Improve Transformer", arXiv:2002.05202) in a mixture of experts (Shazeer et al., arXiv:1701.06538).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as functional
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape
from bench.compiling import not_compiled
from bench.fused_moe import experts, routing

_BF16 = torch.bfloat16


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Rows of an expert's first matrix, and the longest of the three sums."""
    longest = max(dims["hidden_size"], dims["intermediate_size"], dims["top_k"])
    return {"gate_up": 2 * dims["intermediate_size"], "longest": longest}


def _weights(draw: Draw) -> tuple[Tensor, Tensor]:
    """w1 ~ N(0, H^-1/2), w2 ~ N(0, I^-1/2)."""
    d = draw.dims
    w1 = draw.normal((d["num_experts"], d["gate_up"], d["hidden_size"]), d["hidden_size"] ** -0.5, _BF16)
    extent = (d["num_experts"], d["hidden_size"], d["intermediate_size"])
    return w1, draw.normal(extent, d["intermediate_size"] ** -0.5, _BF16)


def _shares(draw: Draw) -> Tensor:
    """Softmax of N(0, 1) over a token's k experts."""
    return draw.normal((draw.dims["token_count"], draw.dims["top_k"]), 1.0, torch.float32).softmax(-1)


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like: hidden ~ N(0, 0.1), weights scaled by fan-in, routing uniform, softmax weights."""
    hidden = draw.normal((draw.dims["token_count"], draw.dims["hidden_size"]), 0.1, _BF16)
    w1, w2 = _weights(draw)
    ids = routing.uniform(draw)
    return {"hidden_states": hidden, "w1": w1, "w2": w2, "topk_weights": _shares(draw), "topk_ids": ids}


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """rows weight^T with fp32 sums, kept in fp32: torch offers that for bf16 operands on NVIDIA GPUs only.

    Elsewhere the operands are widened; the products are exact either way.
    """
    if rows.is_cuda and torch.version.hip is None:
        return torch.mm(rows, weight.T, out_dtype=torch.float32)
    return rows.float() @ weight.float().T


@not_compiled
def _grouped(rows: Tensor, weights: Tensor, counts: list[int]) -> Tensor:
    """Rows sorted by expert, each times the transposed weight of its expert.

    A loop over the experts that have tokens, because their numbers of tokens differ: a padded batch would
    cost E times the work when all tokens choose one expert, and a gather of weights per token k T copies.
    Not compiled: products of sizes that each batch draws anew are the library's in any case.
    """
    hit = [(expert, count) for expert, count in enumerate(counts) if count]
    if not hit:
        return torch.empty((0, weights.shape[1]), dtype=torch.float32, device=rows.device)
    parts = rows.split([count for _, count in hit])
    return torch.cat([_product(part, weights[e]) for part, (e, _) in zip(parts, hit, strict=True)])


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: sort by expert, two grouped products, weighted sum.

    silu(gate) * up is rounded to bf16, so that the second product runs on the same units as the first.
    """
    x, ids = inputs["hidden_states"], inputs["topk_ids"].long()
    tokens, top_k = ids.shape
    order = ids.flatten().argsort(stable=True)
    counts: list[int] = torch.bincount(ids.flatten(), minlength=init["num_experts"]).tolist()
    gate, up = _grouped(x[order // top_k], inputs["w1"], counts).chunk(2, -1)
    middle = (functional.silu(gate) * up).to(x.dtype)
    down = _grouped(middle, inputs["w2"], counts)
    results = torch.empty_like(down)
    results[order] = down
    weights = inputs["topk_weights"][:, None, :]
    return {"out": torch.bmm(weights, results.view(tokens, top_k, x.shape[1])).squeeze(1)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64; `terms` and `slack` are derived in bench/fused_moe/experts.py."""
    w1, w2 = inputs["w1"], inputs["w2"]
    out = experts.expected(
        inputs["hidden_states"],
        lambda expert: w1[expert].double(),
        lambda expert: w2[expert].double(),
        inputs["topk_weights"],
        inputs["topk_ids"],
        init["num_experts"],
    )
    return {"out": out}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for uniform routing.

    Per distinct (token, expert) pair the products with gate, up and w2 (2 H I each); silu and the product
    with up (5 I: exp, add, divide, two products); the weight and the sum over experts (2 H, less H per
    token). Weights of the experts that are hit are read once.
    """
    d = shape.dims
    tokens, hidden, inner = d["token_count"], d["hidden_size"], d["intermediate_size"]
    pairs = routing.expected_pairs(tokens, d["top_k"], d["num_experts"])
    hits = routing.expected_hits(d["num_experts"], tokens * d["top_k"])
    vector = pairs * (5 * inner + 2 * hidden) - tokens * hidden
    return Cost(
        flops={"bf16": float(pairs * 6 * hidden * inner), "fp32": float(vector)},
        read_bytes=2 * tokens * hidden + hits * 6 * hidden * inner + 8 * tokens * d["top_k"],
        write_bytes=4 * tokens * hidden,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few tokens, narrower, with more experts than a token can name where production has."""
    reduced = {
        "token_count": min(input["token_count"], 37),
        "hidden_size": min(input["hidden_size"], 128),
        "intermediate_size": min(input["intermediate_size"], 48),
        "num_experts": min(input["num_experts"], 16),
        "top_k": input["top_k"],
    }
    return {
        **init,
        **{name: reduced[name] for name in ("num_experts", "intermediate_size", "top_k")},
    }, reduced


def _odd(tokens: int, hidden: int, inner: int, count: int, top_k: int) -> tuple[Init, Input]:
    extents = {"num_experts": count, "intermediate_size": inner, "top_k": top_k}
    return extents, {"token_count": tokens, "hidden_size": hidden, **extents}


ODD = (
    _odd(1, 8, 8, 1, 1),
    _odd(0, 64, 64, 4, 2),  # no token at all
    _odd(2, 72, 40, 3, 2),
    _odd(3, 16, 2056, 2, 1),  # the second sum longer than any tile, the first shorter
    _odd(5, 4104, 8, 3, 2),
    _odd(7, 512, 24, 64, 4),  # most experts without tokens
    _odd(17, 200, 136, 5, 3),
    _odd(31, 160, 56, 8, 9),  # more choices than experts
    _odd(63, 128, 64, 7, 1),
    _odd(65, 264, 96, 16, 8),
    _odd(100, 120, 88, 200, 2),  # experts not a power of two, more than a warp or a block scans
    _odd(127, 64, 24, 33, 6),
    _odd(129, 136, 72, 2, 2),
    _odd(257, 96, 48, 1, 3),  # one expert, always repeated
    _odd(1, 128, 128, 513, 8),
    _odd(3, 64, 24, 5, 33),
)


def _with(draw: Draw, ids: Tensor) -> dict[str, Tensor]:
    """hidden ~ N(0, 1) and weights that sum to anything, under a given routing."""
    hidden = draw.normal((draw.dims["token_count"], draw.dims["hidden_size"]), 1.0, _BF16)
    w1, w2 = _weights(draw)
    weights = draw.uniform((draw.dims["token_count"], draw.dims["top_k"])) * 1.75 + 0.125
    return {"hidden_states": hidden, "w1": w1, "w2": w2, "topk_weights": weights, "topk_ids": ids}


def rich(draw: Draw) -> dict[str, Tensor]:
    """Values of size one, weights of 1/8 to 15/8 that nobody normalised, Zipf routing with repeats."""
    return _with(draw, routing.zipf(draw))


def routed(ids: Callable[[Draw], Tensor]) -> Callable[[Draw], dict[str, Tensor]]:
    """The rich source under another routing."""
    return lambda draw: _with(draw, ids(draw))


def experts_apart(draw: Draw) -> dict[str, Tensor]:
    """Experts whose w2 differ by powers of two, under weights from 2^-12 to 1, some of them 0."""
    inputs = _with(draw, routing.uniform(draw))
    exponent = torch.arange(draw.dims["num_experts"], device=draw.device) % 13 - 6
    inputs["w2"] = torch.ldexp(inputs["w2"], exponent[:, None, None]).to(_BF16)
    weights = torch.exp2(-12 * draw.uniform(inputs["topk_weights"].shape))
    # Never the first of a token: a result of nothing but zeros has a sign that no one promises.
    weights[:, 1:] *= draw.uniform(weights[:, 1:].shape) >= 0.05
    inputs["topk_weights"] = weights
    return inputs


def _flat(draw: Draw, gate: float, up: float, down: float) -> dict[str, Tensor]:
    """x = 1 and constant weights: sums whose rounding is known."""
    d, device = draw.dims, draw.device
    first = torch.full((d["num_experts"], d["gate_up"], d["hidden_size"]), gate, dtype=_BF16, device=device)
    first[:, d["intermediate_size"] :] = up
    second = (d["num_experts"], d["hidden_size"], d["intermediate_size"])
    return {
        "hidden_states": torch.ones((d["token_count"], d["hidden_size"]), dtype=_BF16, device=device),
        "w1": first,
        "w2": torch.full(second, down, dtype=_BF16, device=device),
        "topk_weights": _shares(draw),
        "topk_ids": routing.uniform(draw),
    }


def _slots(draw: Draw, rows: str, columns: str) -> tuple[Tensor, Tensor]:
    """Row r, and a column that differs from row to row."""
    row = torch.arange(draw.dims[rows], device=draw.device)
    return row, row * 5 % draw.dims[columns]


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """gate = 32 (1 + (H - 1) 2^-15) and up a 32nd of it: a running sum of 8 bits stays at 32 and 1.

    It does so when products are added 64 at a time, too.
    """
    inputs = _flat(draw, 2.0**-10, 2.0**-15, 1.0)
    row, column = _slots(draw, "intermediate_size", "hidden_size")
    inputs["w1"][:, row, column] = 32
    inputs["w1"][:, row + draw.dims["intermediate_size"], column] = 1
    return inputs


def down_stagnation(draw: Draw) -> dict[str, Tensor]:
    """silu(gate) * up = 32 exactly; each row of w2 has one 1024 among ones that must still be counted."""
    inputs = _flat(draw, 0.0, 0.0, 1.0)
    inner = draw.dims["intermediate_size"]
    inputs["w1"][:, :inner, 0] = 32
    inputs["w1"][:, inner:, -1] = 1
    row, column = _slots(draw, "hidden_size", "intermediate_size")
    inputs["w2"][:, row, column] = 1024
    return inputs


def fine_gates(draw: Draw) -> dict[str, Tensor]:
    """gate = 257 and up = 257/256 need nine bits; their product is a bf16 but for 2^-16 of itself.

    Rounding gate or up to bf16 moves it by a bf16 unit; rounding the product, which is allowed, hardly does.
    """
    inputs = _flat(draw, 0.0, 0.0, 1.0)
    inner = draw.dims["intermediate_size"]
    row, column = _slots(draw, "intermediate_size", "hidden_size")
    beside = (column + 1) % draw.dims["hidden_size"]
    inputs["w1"][:, row, column] = 256
    inputs["w1"][:, row, beside] = 1
    inputs["w1"][:, row + inner, beside] = 1
    inputs["w1"][:, row + inner, column] = 2.0**-8
    return inputs


def fine_results(draw: Draw) -> dict[str, Tensor]:
    """silu(gate) * up = 32 exactly, w2 of odd integers, weights of 24 bits: bf16 holds no such output."""
    inputs = _flat(draw, 0.0, 0.0, 1.0)
    inner = draw.dims["intermediate_size"]
    inputs["w1"][:, :inner, 0] = 32
    inputs["w1"][:, inner:, -1] = 1
    inputs["w2"] = (draw.uniform(inputs["w2"].shape) * 127).floor().mul_(2).add_(1).to(_BF16)
    return inputs


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {
        "stagnation": stagnation,
        "down_stagnation": down_stagnation,
        "fine_gates": fine_gates,
        "fine_results": fine_results,
    },
    "sensitivity": {
        "rich": rich,
        "one_expert": routed(routing.one_expert),
        "repeated_ids": routed(routing.repeated),
        "few_experts": routed(routing.few_experts),
        "experts_apart": experts_apart,
    },
}
