"""fp8_blockscale_fused_moe: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: hidden_states [T, H] FP8 with a_scale [T, H/128], w1 [E, 2I, H] FP8 with fc1_scale [E, 2I/128,
H/128], w2 [E, H, I] FP8 with fc2_scale [E, H/128, I/128], topk_weights and topk_ids [T, k], out [T, H] FP8
or bf16. Formula: bench/fused_moe on the dequantised operands; scales by block as in DeepSeek-V3
(arXiv:2412.19437, 3.3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from atrex.contract import DTYPES
from atrex.fp8 import FP8, FP8_MAX
from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape
from bench.compiling import host_loop
from bench.fused_moe import experts, routing

_GROUP = 128
_OUT_DTYPES = ("fp8", "bf16")


def extents(init: Init, input: Input) -> dict[str, Any]:
    """The case's extents, and the output dtype that `out_dtype` names."""
    if (out := init["out_dtype"]) not in _OUT_DTYPES:
        raise ValueError(f"out_dtype is {out!r}; legal is {' or '.join(_OUT_DTYPES)}")
    return {**input, "dtype": out}


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Rows of an expert's first matrix, numbers of scale blocks, and the longest of the three sums."""
    hidden, inner = dims["hidden_size"], dims["intermediate_size"]
    return {
        "gate_up": 2 * inner,
        "hidden_groups": hidden // _GROUP,
        "intermediate_groups": inner // _GROUP,
        "gate_up_groups": 2 * inner // _GROUP,
        "longest": max(hidden, inner, dims["top_k"]),
    }


def _quantise(x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """x [R, C] fp32 in blocks of `rows` x 128: FP8 values and fp32 scales amax / FP8_MAX [R/rows, C/128]."""
    blocks = x.view(x.shape[0] // rows, rows, x.shape[1] // _GROUP, _GROUP)
    scale = (blocks.abs().amax((1, 3)) / FP8_MAX).clamp_(min=1e-10)
    scaled = (blocks / scale[:, None, :, None]).clamp_(-FP8_MAX, FP8_MAX)
    return scaled.view(x.shape).to(FP8), scale


def _dequantise(x: Tensor, scale: Tensor, rows: int) -> Tensor:
    """The inverse, in the dtype of `scale`."""
    blocks = x.to(scale.dtype).view(x.shape[0] // rows, rows, x.shape[1] // _GROUP, _GROUP)
    return (blocks * scale[:, None, :, None]).view(x.shape)


def _spread(draw: Draw, x: Tensor, rows: int) -> Tensor:
    """Blocks times 1/2, 1 or 2, so that the scale of one is wrong for its neighbour.

    Around 1 on average, also of few blocks: a lone block at 1/2 in every operand leaves results among FP8's
    subnormals, where the reference itself is too coarse to judge by.
    """
    blocks = x.view(x.shape[0] // rows, rows, x.shape[1] // _GROUP, _GROUP)
    exponent = draw.integers((blocks.shape[0], 1, blocks.shape[2], 1), 3) - 1
    centred = (exponent - exponent.float().mean().round()).clamp(-1, 1) if exponent.numel() else exponent
    return torch.ldexp(blocks, centred).view(x.shape)


def _matrices(draw: Draw, rows: int, columns: int, spread: bool) -> tuple[Tensor, Tensor]:
    """E matrices ~ N(0, columns^-1/2) quantised by 128 x 128 block, one at a time to bound fp32 copies."""
    count = draw.dims["num_experts"]
    values = torch.empty((count, rows, columns), dtype=FP8, device=draw.device)
    scales = torch.empty((count, rows // _GROUP, columns // _GROUP), dtype=torch.float32, device=draw.device)
    for expert in range(count):
        matrix = draw.normal((rows, columns), columns**-0.5, torch.float32)
        values[expert], scales[expert] = _quantise(
            _spread(draw, matrix, _GROUP) if spread else matrix, _GROUP
        )
    return values, scales


def _inputs(draw: Draw, weights: Tensor, ids: Tensor, spread: bool) -> dict[str, Tensor]:
    """N(0, 1) hidden states and weights scaled by fan-in; `spread` moves the scales of blocks apart.

    Spreading raises results and their tails, and weights that are not normalised do, which fc2_scale undoes:
    the default output ends at 448 (240 on some platforms).
    """
    d = draw.dims
    x = draw.normal((d["token_count"], d["hidden_size"]), 1.0, torch.float32)
    hidden, a_scale = _quantise(_spread(draw, x, 1) if spread else x, 1)
    w1, fc1_scale = _matrices(draw, d["gate_up"], d["hidden_size"], spread)
    w2, fc2_scale = _matrices(draw, d["hidden_size"], d["intermediate_size"], spread)
    fc2_scale *= 2.0**-4 if spread else 1.0
    return {
        "hidden_states": hidden,
        "w1": w1,
        "w2": w2,
        "topk_weights": weights,
        "topk_ids": ids,
        "a_scale": a_scale,
        "fc1_scale": fc1_scale,
        "fc2_scale": fc2_scale,
    }


def _shares(draw: Draw) -> Tensor:
    """Softmax of N(0, 1) over a token's k experts."""
    return draw.normal((draw.dims["token_count"], draw.dims["top_k"]), 1.0, torch.float32).softmax(-1)


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like: operands quantised per block by amax / FP8_MAX, routing uniform, softmax weights.

    hidden ~ N(0, 1) before quantisation, not fused_moe's N(0, 0.1): that gives results of about 0.003, which
    the default FP8 output (smallest normal value 2^-6) turns into zeros and single units.
    """
    return _inputs(draw, _shares(draw), routing.uniform(draw), spread=False)


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: dequantise, sort by expert, products, weighted sum.

    Dequantised values need more bits than bf16 has, so the products are fp32.
    """
    ids = inputs["topk_ids"].long()
    tokens, top_k = ids.shape
    x = _dequantise(inputs["hidden_states"], inputs["a_scale"], 1)
    order = ids.flatten().argsort(stable=True)
    counts: list[int] = torch.bincount(ids.flatten(), minlength=init["num_experts"]).tolist()
    results = _experts(x, order, counts, inputs)
    out = torch.bmm(inputs["topk_weights"][:, None, :], results.view(tokens, top_k, x.shape[1])).squeeze(1)
    return {"out": out.to(DTYPES[init["out_dtype"]])}


@host_loop
def _experts(x: Tensor, order: Tensor, counts: list[int], inputs: Mapping[str, Tensor]) -> Tensor:
    """Results of all pairs of token and expert, [T k, H].

    A loop over the experts that have tokens: their numbers of tokens differ, and dequantising all of them at
    once would take 45 GB.
    """
    results = x.new_empty((order.shape[0], x.shape[1]))
    top_k, start = order.shape[0] // max(1, x.shape[0]), 0
    for expert, count in enumerate(counts):
        if not count:
            continue
        pairs = order[start : start + count]
        start += count
        w1 = _dequantise(inputs["w1"][expert], inputs["fc1_scale"][expert], _GROUP)
        gate, up = (x[pairs // top_k] @ w1.T).chunk(2, -1)
        w2 = _dequantise(inputs["w2"][expert], inputs["fc2_scale"][expert], _GROUP)
        results[pairs] = (functional.silu(gate) * up) @ w2.T
    return results


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64 on operands dequantised in fp64; error terms as in bench/fused_moe/experts.py.

    Scaling an element or a block's sum rounds a few times more, relative to terms that are counted already.
    """
    w1, w2 = inputs["w1"], inputs["w2"]
    first, second = inputs["fc1_scale"], inputs["fc2_scale"]
    out = experts.expected(
        _dequantise(inputs["hidden_states"], inputs["a_scale"].double(), 1),
        lambda expert: _dequantise(w1[expert], first[expert].double(), _GROUP),
        lambda expert: _dequantise(w2[expert], second[expert].double(), _GROUP),
        inputs["topk_weights"],
        inputs["topk_ids"],
        init["num_experts"],
    )
    return {"out": out}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes for uniform routing.

    Per distinct (token, expert) pair: products with gate and up (FP8, 4 H I) and with w2 (bf16, 2 H I); the
    two scales and the addition of each block's sum, or one scale where the activation has none; silu and
    the product with up (5 I); the weight and the sum over experts (2 H, less H per token).
    """
    d = shape.dims
    tokens, hidden, inner = d["token_count"], d["hidden_size"], d["intermediate_size"]
    pairs = routing.expected_pairs(tokens, d["top_k"], d["num_experts"])
    hits = routing.expected_hits(d["num_experts"], tokens * d["top_k"])
    scaling = 2 * inner * (3 * d["hidden_groups"] - 1) + hidden * (2 * d["intermediate_groups"] - 1)
    scales = d["hidden_groups"] * (d["gate_up_groups"] + d["intermediate_groups"])
    return Cost(
        flops={
            "fp8": float(pairs * 4 * hidden * inner),
            "bf16": float(pairs * 2 * hidden * inner),
            "fp32": float(pairs * (scaling + 5 * inner + 2 * hidden) - tokens * hidden),
        },
        read_bytes=tokens * (hidden + 4 * d["hidden_groups"] + 8 * d["top_k"])
        + hits * (3 * hidden * inner + 4 * scales),
        write_bytes=tokens * hidden * DTYPES[str(shape.init["out_dtype"])].itemsize,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few tokens, two blocks in each direction, four experts."""
    reduced = {
        "token_count": min(input["token_count"], 37),
        "hidden_size": min(input["hidden_size"], 2 * _GROUP),
        "intermediate_size": min(input["intermediate_size"], 2 * _GROUP),
        "num_experts": min(input["num_experts"], 4),
        "top_k": input["top_k"],
    }
    given = {name: value for name, value in init.items() if name != "out_dtype" or value != "fp8"}
    return {
        **given,
        **{name: reduced[name] for name in ("num_experts", "intermediate_size", "top_k")},
    }, reduced


def _odd(tokens: int, hidden: int, inner: int, count: int, top_k: int) -> tuple[Init, Input]:
    extents_ = {"num_experts": count, "intermediate_size": inner, "top_k": top_k}
    return extents_, {"token_count": tokens, "hidden_size": hidden, **extents_}


ODD = (
    _odd(1, 128, 128, 1, 1),
    _odd(0, 256, 128, 4, 2),  # no token at all
    _odd(2, 128, 384, 3, 2),
    _odd(3, 1152, 128, 2, 1),  # nine blocks against one
    _odd(5, 128, 640, 2, 2),
    _odd(17, 384, 256, 5, 3),
    _odd(31, 256, 128, 3, 9),  # more choices than experts
    _odd(63, 128, 256, 7, 1),
    _odd(65, 384, 128, 6, 8),
    _odd(100, 128, 128, 33, 2),  # most experts with a few tokens only
    _odd(129, 256, 384, 2, 2),
    _odd(257, 128, 128, 1, 3),  # one expert, always repeated
    _odd(1, 128, 128, 37, 8),
    _odd(3, 128, 128, 5, 33),
)


def _loose(draw: Draw) -> Tensor:
    """Weights of 1/2 to 15/8 that nobody normalised."""
    return draw.uniform((draw.dims["token_count"], draw.dims["top_k"])) * 1.375 + 0.5


def rich(draw: Draw) -> dict[str, Tensor]:
    """Scales that differ by powers of two from block to block, weights that sum to anything, Zipf routing."""
    return _inputs(draw, _loose(draw), routing.zipf(draw), spread=True)


def routed(ids: Callable[[Draw], Tensor]) -> Callable[[Draw], dict[str, Tensor]]:
    """The rich source under another routing."""
    return lambda draw: _inputs(draw, _loose(draw), ids(draw), spread=True)


def _flat(draw: Draw, gate: float, up: float, down: float) -> dict[str, Tensor]:
    """x = 1 and constant weights under scales of one: sums whose rounding is known."""
    d, device = draw.dims, draw.device
    first = torch.full((d["num_experts"], d["gate_up"], d["hidden_size"]), gate, device=device)
    first[:, d["intermediate_size"] :] = up
    second = (d["num_experts"], d["hidden_size"], d["intermediate_size"])
    return {
        "hidden_states": torch.ones((d["token_count"], d["hidden_size"]), device=device).to(FP8),
        "w1": first.to(FP8),
        "w2": torch.full(second, down, device=device).to(FP8),
        "topk_weights": _shares(draw),
        "topk_ids": routing.uniform(draw),
        "a_scale": torch.ones((d["token_count"], d["hidden_groups"]), device=device),
        "fc1_scale": torch.ones((d["num_experts"], d["gate_up_groups"], d["hidden_groups"]), device=device),
        "fc2_scale": torch.ones(
            (d["num_experts"], d["hidden_groups"], d["intermediate_groups"]), device=device
        ),
    }


def _set(inputs: dict[str, Tensor], name: str, rows: Tensor, columns: Tensor, value: float) -> None:
    """Elements of every expert's matrix; by their bits, since eight-bit dtypes lack most operations."""
    code = torch.full((1,), value, device=rows.device).to(FP8).view(torch.uint8)
    inputs[name].view(torch.uint8)[:, rows, columns] = code


def _slots(draw: Draw, rows: str, columns: str) -> tuple[Tensor, Tensor]:
    """Row r, and a column that differs from row to row."""
    row = torch.arange(draw.dims[rows], device=draw.device)
    return row, row * 5 % draw.dims[columns]


def _bounded(inputs: dict[str, Tensor], most: float) -> dict[str, Tensor]:
    """fc2_scale as the power of two that keeps results of up to `most` between 8 and 16."""
    inputs["fc2_scale"] = torch.full_like(inputs["fc2_scale"], 2.0 ** (4 - math.ceil(math.log2(most))))
    return inputs


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """gate = up = 32 + 1.5 (H - 1) / 128: a running sum of 8 bits adds a third too much, later nothing.

    Not smaller terms: FP8 tensor cores align a group of products to the largest with 13 bits behind it.
    """
    inputs = _flat(draw, 1.5 * 2.0**-7, 1.5 * 2.0**-7, 1.0)
    inner, hidden = draw.dims["intermediate_size"], draw.dims["hidden_size"]
    row, column = _slots(draw, "intermediate_size", "hidden_size")
    _set(inputs, "w1", row, column, 32.0)
    _set(inputs, "w1", row + inner, column, 32.0)
    return _bounded(inputs, inner * (32 + hidden * 1.5 / 128) ** 2)


def fine_gates(draw: Draw) -> dict[str, Tensor]:
    """gate = 257 and up = 257/256 need nine bits, one more than bf16 has; their product is nearly a bf16.

    A factor of two comes from the scale, because FP8 of some platforms ends at 240.
    """
    inputs = _flat(draw, 0.0, 0.0, 1.0)
    inner, hidden = draw.dims["intermediate_size"], draw.dims["hidden_size"]
    row, column = _slots(draw, "intermediate_size", "hidden_size")
    beside = (column + 1) % hidden
    _set(inputs, "w1", row, column, 128.0)
    _set(inputs, "w1", row, beside, 0.5)
    _set(inputs, "w1", row + inner, beside, 0.5)
    _set(inputs, "w1", row + inner, column, 2.0**-9)
    inputs["a_scale"] *= 2
    return _bounded(inputs, inner * 258)


def fine_middle(draw: Draw) -> dict[str, Tensor]:
    """silu(gate) * up = 32 times eight significant bits, seen through one-hot rows of w2.

    bf16 holds it exactly; an intermediate quantised to FP8 does not.
    """
    inputs = _flat(draw, 0.0, 0.0, 0.0)
    d = draw.dims
    inner = d["intermediate_size"]
    row = torch.arange(inner, device=draw.device)
    _set(inputs, "w1", row, torch.zeros_like(row), 32.0)
    high = 1 + draw.integers((d["num_experts"], inner), 8).float() / 8
    low = (draw.integers((d["num_experts"], inner), 8).float() * 2 + 1) / 128
    codes = inputs["w1"].view(torch.uint8)
    codes[:, inner:, 1] = high.to(FP8).view(torch.uint8)
    codes[:, inner:, 2] = low.to(FP8).view(torch.uint8)
    outputs = torch.arange(d["hidden_size"], device=draw.device)
    _set(inputs, "w2", outputs, outputs % inner, 1.0)
    return _bounded(inputs, 64.0)


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "fine_gates": fine_gates, "fine_middle": fine_middle},
    "sensitivity": {
        "rich": rich,
        "one_expert": routed(routing.one_expert),
        "repeated_ids": routed(routing.repeated),
        "few_experts": routed(routing.few_experts),
    },
}
