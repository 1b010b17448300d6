"""attention_forward: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: q, k, v [T, H, D] bf16, cu_seqlens_q and cu_seqlens_k [S+1] int32 (equal: self-attention), out
[T, H, D] bf16. Formula: Vaswani et al., "Attention Is All You Need" (2017), eq. 1, within each sequence and
without a mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input, Source, expand
from atrex.records import Cost, Shape
from bench.alignment import aligned
from bench.attention_forward import probes
from bench.attention_forward.softmax import packed_attention

_SMALL = 1 << 18


def extents(init: Init, input: Input) -> dict[str, Any]:
    """As the case states them."""
    return {
        "num_heads": input["num_heads"],
        "head_dim": input["head_dim"],
        "seq_lens": expand(input["seq_lens"]),
    }


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Tokens, sequences, entries of the prefix sums, and the longest sum that is taken."""
    lens = lengths["seq_lens"]
    return {
        "token_count": sum(lens),
        "num_seqs": len(lens),
        "boundaries": len(lens) + 1,
        "longest": max(dims["head_dim"], *lens, 0),
    }


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: q, k and v ~ N(0, 1)."""
    shape = (draw.dims["token_count"], draw.dims["num_heads"], draw.dims["head_dim"])
    q, k, v = (draw.normal(shape, 1.0, torch.bfloat16) for _ in range(3))
    return _with_sums(draw, q, k, v)


def _with_sums(draw: Draw, q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
    sums = probes.prefix_sums(draw.lengths["seq_lens"], draw.device)
    return {"q": q, "k": k, "v": v, "cu_seqlens_q": sums, "cu_seqlens_k": sums.clone()}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """scaled_dot_product_attention over a batch of all sequences of one length, for each length.

    Its fused kernels keep logits, softmax and sums in fp32 and round P to bf16 for the tensor cores; that one
    rounding is within the contract, and plain fp32 would be several times slower than what anybody runs. A
    loop over distinct lengths, since fused kernels take rectangular batches; production cases have one.
    """
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    lens = inputs["cu_seqlens_q"].diff().tolist()
    if len(set(lens)) == 1 and lens[0]:
        batch = (t.unflatten(0, (len(lens), lens[0])).transpose(1, 2) for t in map(aligned, (q, k, v)))
        return {"out": F.scaled_dot_product_attention(*batch).transpose(1, 2).flatten(0, 1).contiguous()}
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    starts = inputs["cu_seqlens_q"][:-1].long()
    for length in sorted(set(lens) - {0}):
        members = torch.tensor([i for i, n in enumerate(lens) if n == length], device=q.device)
        rows = starts[members, None] + torch.arange(length, device=q.device)
        batch = (t[rows].transpose(1, 2) for t in (q, k, v))
        out[rows] = F.scaled_dot_product_attention(*batch).transpose(1, 2)
    return {"out": out}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, chunked over queries; its bound is derived in softmax.py."""
    q_lens, k_lens = (inputs[name].diff().tolist() for name in ("cu_seqlens_q", "cu_seqlens_k"))
    return {"out": packed_attention(inputs["q"], inputs["k"], inputs["v"], q_lens, k_lens)}


def cost(shape: Shape) -> Cost:
    """The two matrix products, 2 * 2 D operations per head, query and key; every tensor once."""
    heads, size = shape.dims["num_heads"], shape.dims["head_dim"]
    tensor = 2 * shape.dims["token_count"] * heads * size
    pairs = sum(length * length for length in shape.lengths["seq_lens"])
    return Cost(
        flops={"bf16": float(4 * size * heads * pairs)},
        read_bytes=3 * tensor + 2 * 4 * shape.dims["boundaries"],
        write_bytes=tensor,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """At most four heads, and sequences as long as 2^18 elements allow."""
    lens, heads = expand(input["seq_lens"])[:3], min(4, input["num_heads"])
    most = max(1, _SMALL // (heads * input["head_dim"] * max(1, len(lens))))
    return init, {**input, "num_heads": heads, "seq_lens": [min(length, most) for length in lens]}


def _case(lens: list[Any], heads: int = 2, size: int = 72) -> tuple[Init, Input]:
    return {}, {"num_heads": heads, "head_dim": size, "seq_lens": lens}


ODD = (
    _case([1]),
    _case([2], 1, 8),
    _case([7, 5], 3, 72),
    _case([63, 64, 65]),
    _case([127, 1, 129], 2, 128),
    _case([0, 33, 0, 0, 17, 0], 5, 80),  # empty sequences first, between and last
    _case([0, 0]),
    _case([1, 1, 1, 1, 1], 4, 64),
    _case([1, 0, 0]),  # fewer tokens than sequences
    _case([257, 3], 1, 128),
    _case([513], 1, 80),
    _case([31, 32, 33, 95, 96, 97], 3, 40),
    _case([200, 100, 50, 25, 12, 6, 3, 1], 2, 96),
    _case([[11, 40]], 3, 24),
    _case([5, 300, 5], 1, 256),
    _case([1025], 1, 16),
    _case([130, 70], 2, 248),
    _case([[2, 300], [1, 5]], 1, 8),  # more sequences than a tile of them
)


def _source(pattern: probes.Pattern) -> Source:
    def source(draw: Draw) -> dict[str, Tensor]:
        heads = draw.dims["num_heads"]
        lens = draw.lengths["seq_lens"]
        at = probes.pack(draw, lens, lens, (heads, heads, draw.dims["head_dim"]), torch.bfloat16)
        return _with_sums(draw, *pattern(draw, at))

    return source


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {name: _source(pattern) for name, pattern in probes.ACCUMULATION.items()},
    "sensitivity": {name: _source(pattern) for name, pattern in probes.SENSITIVITY.items()},
}
