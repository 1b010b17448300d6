"""topk_filter: inputs, eager reference, oracle, directed probes and cost.

Shapes: logits [B, V] fp32, out [B, V] fp32; a case calls B `seq_len` and V `hidden_size`. Formula:
top-k sampling's filter (Fan, Lewis and Dauphin, "Hierarchical Neural Story Generation", 2018): what is
below the k-th largest of its row, counted with multiplicity, becomes -inf. k is capped at V.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 25  # elements at a time: a sort takes some 20 bytes for each


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: logits ~ N(0, 1)."""
    return {"logits": draw.normal(_extent(draw), 1.0, torch.float32)}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it."""
    logits = inputs["logits"]
    kept = logits.topk(min(init["top_k"], logits.shape[-1]), dim=-1, sorted=False).values
    return {"out": logits.masked_fill(logits < kept.amin(-1, keepdim=True), -math.inf)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The same from a full sort, a block of rows at a time; exact, so there is no error to bound."""
    logits = inputs["logits"]
    rows, vocabulary = logits.shape
    rank = max(vocabulary - init["top_k"], 0)  # of the k-th largest, from below
    value = torch.empty_like(logits)
    step = max(1, _ORACLE_CHUNK // vocabulary)
    for start in range(0, rows, step):
        block = logits[start : start + step]
        least = block.sort(dim=-1).values[:, rank : rank + 1]
        value[start : start + step] = torch.where(block >= least, block, -math.inf)
    return {"out": Expected(value, value.new_zeros(()).expand(value.shape))}


def cost(shape: Shape) -> Cost:
    """No arithmetic: comparisons only, and every logit read and written once."""
    size = 4 * shape.dims["seq_len"] * shape.dims["hidden_size"]
    return Cost(flops={"fp32": 0.0}, read_bytes=size, write_bytes=size)


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """As many rows of the same vocabulary as stay small."""
    return init, {**input, "seq_len": min(input["seq_len"], max(1, (1 << 17) // input["hidden_size"]))}


def _odd(top_k: int, seq_len: int, hidden_size: int) -> tuple[Init, Input]:
    return {"top_k": top_k}, {"seq_len": seq_len, "hidden_size": hidden_size}


# k of 1, of all but one, of all and of more than there are; vocabularies beside the powers of two, of
# one entry, and too large for one block; counts of rows that fill no tile, or a whole CUDA grid.
ODD = (
    _odd(50, 0, 1000),
    _odd(50, 1, 1),
    _odd(1, 3, 1),
    _odd(1, 5, 4097),
    _odd(2, 2, 3),
    _odd(50, 7, 49),
    _odd(50, 7, 50),
    _odd(50, 7, 51),
    _odd(999, 3, 1000),
    _odd(1000, 3, 1000),
    _odd(1001, 3, 1000),
    _odd(16777216, 2, 513),
    _odd(20, 13, 1023),
    _odd(33, 17, 2049),
    _odd(64, 65, 127),
    _odd(65, 63, 129),
    _odd(1024, 3, 8193),
    _odd(1025, 2, 16381),
    _odd(50, 2, 32000),
    _odd(50, 1, 128257),
    _odd(40000, 1, 50257),
    _odd(50, 1, 262145),
    _odd(5, 65537, 7),
)


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["seq_len"], draw.dims["hidden_size"]


def _cap(draw: Draw) -> int:
    return min(int(draw.init["top_k"]), draw.dims["hidden_size"])


def _shuffled(draw: Draw, values: Tensor) -> Tensor:
    """Each row in an order of its own."""
    return values.gather(1, draw.uniform(values.shape).argsort(1))


def uneven_rows(draw: Draw) -> dict[str, Tensor]:
    """N(0, 1) about another mean in each row: a threshold of one row is wrong in all others."""
    mean = 8 * draw.normal((draw.dims["seq_len"], 1), 1.0, torch.float32)
    return {"logits": draw.normal(_extent(draw), 1.0, torch.float32) + mean}


def neighbours(draw: Draw) -> dict[str, Tensor]:
    """All different, most by one unit in the last place: a threshold off by one bit is seen.

    Shuffled ranks count up from the bits of 8.0, so bf16, fp16 and TF32 see ties only; two entries are
    2^20 away on either side, so a bisection between the extremes must go to the last bit.
    """
    ranks = torch.arange(draw.dims["hidden_size"], dtype=torch.int32, device=draw.device)
    base = torch.tensor(8.0, device=draw.device).view(torch.int32)
    values = (ranks + base).view(torch.float32)
    values[1:][-1:] = 2.0**20
    values[:-1][:1] = -(2.0**20)
    return {"logits": _shuffled(draw, values.expand(_extent(draw))) * _row_signs(draw)}


def _row_signs(draw: Draw) -> Tensor:
    return torch.where(draw.uniform((draw.dims["seq_len"], 1)) < 0.5, -1.0, 1.0)


def ties(draw: Draw) -> dict[str, Tensor]:
    """The k-th largest occurs several times, straddling rank k, at drawn places: all of them stay."""
    rows, vocabulary = _extent(draw)
    k = _cap(draw)
    values = torch.linspace(4, -4, vocabulary, device=draw.device)
    tied = slice(max(0, k - 3), k + max(1, k // 2))
    values[tied] = values[k - 1].clone()
    return {"logits": _shuffled(draw, values.expand(rows, vocabulary)) + draw.integers((rows, 1), 5)}


def few_levels(draw: Draw) -> dict[str, Tensor]:
    """Integers of -3 to 3, zeros of either sign among them: thousands of ties, and -0 equals 0."""
    whole = draw.integers(_extent(draw), 7, torch.int64).float() - 3
    return {"logits": whole * torch.where(draw.uniform(whole.shape) < 0.5, -1.0, 1.0)}


def ends(draw: Draw) -> dict[str, Tensor]:
    """Rising, falling and constant rows: the largest sit at one end, and none may be lost there."""
    rows, vocabulary = _extent(draw)
    slope = torch.arange(rows, device=draw.device) % 3 - 1.0
    return {"logits": slope[:, None] * torch.linspace(-5, 5, vocabulary, device=draw.device) + 1}


def masked(draw: Draw) -> dict[str, Tensor]:
    """-inf everywhere but in fewer than k places, exactly k, or more: as a grammar leaves the logits."""
    rows, vocabulary = _extent(draw)
    logits = draw.normal((rows, vocabulary), 1.0, torch.float32)
    rank = draw.uniform((rows, vocabulary)).argsort(1).argsort(1)
    left = _cap(draw) + torch.arange(rows, device=draw.device) % 5 - 2
    return {"logits": logits.masked_fill_(rank >= left.clamp(min=0)[:, None], -math.inf)}


def unusual_values(draw: Draw) -> dict[str, Tensor]:
    """Subnormals, the largest finite values and infinities of both signs among N(0, 1).

    A filter that marks what it drops with the least finite value, flushes subnormals or counts an
    infinity twice is wrong here. A third of the rows is all subnormal.
    """
    info = torch.finfo(torch.float32)
    odd = torch.tensor(
        [math.inf, -math.inf, info.max, info.min, 1e-42, -1e-42, info.tiny, -info.tiny, 0.0, -0.0],
        device=draw.device,
    )
    logits = draw.normal(_extent(draw), 1.0, torch.float32)
    chosen = draw.uniform(logits.shape) < 0.1
    logits = torch.where(chosen, odd[draw.integers(logits.shape, len(odd), torch.int64)], logits)
    tiny = draw.integers(logits.shape, 1 << 22).view(torch.float32)
    logits[1::3] = torch.where(draw.uniform(logits.shape) < 0.5, tiny, -tiny)[1::3]
    return {"logits": logits}


# Directed inputs by the gate that uses them. There is no arithmetic to accumulate.
PROBES = {
    "sensitivity": {
        "uneven_rows": uneven_rows,
        "neighbours": neighbours,
        "ties": ties,
        "few_levels": few_levels,
        "ends": ends,
        "masked": masked,
        "unusual_values": unusual_values,
    },
}
