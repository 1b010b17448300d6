"""paged_attention_decode: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes, with x = 8 elements (16 bytes): query [S, Hq, D], k_cache [blocks, Hkv, D/x, block_size, x], v_cache
[blocks, Hkv, D, block_size] in bf16 or fp16, block_tables [S, max_blocks] and seq_lens [S] int32, out
[S, Hq, D]. Formula: Vaswani et al., "Attention Is All You Need" (2017), eq. 1, one query per sequence, over a
cache in blocks (Kwon et al., "PagedAttention", 2023).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input, Source, expand
from atrex.records import Cost, Shape
from bench.alignment import aligned
from bench.attention_forward import probes
from bench.attention_forward.softmax import packed_attention
from bench.unified_attention import paging

_PIECE = 8  # elements of 16 bytes
_SMALL = 1 << 18
_GATHERED = 1 << 28  # elements of a padded copy of the keys: 512 MiB


def extents(init: Init, input: Input) -> dict[str, Any]:
    """`seq_lens` are taken in turn by the sequences; without them every sequence has `ctx_len` keys.

    Raises ValueError for what is outside the domain.
    """
    heads, kv_heads = input["num_query_heads"], input["num_kv_heads"]
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"num_query_heads {heads} is no multiple of num_kv_heads {kv_heads}")
    lens = expand(input["seq_lens"]) if "seq_lens" in input else (input["ctx_len"],)
    if not lens:
        raise ValueError("seq_lens is empty")
    return {
        "num_seqs": input.get("num_seqs", len(lens)),
        "num_kv_heads": kv_heads,
        "heads_per_kv": heads // kv_heads,
        "head_pieces": _pieces(input["head_size"]),
        "block_size": input["block_size"],
        "spare_blocks": input.get("spare_blocks", 16),
        "spare_columns": input.get("spare_columns", 0),
        "seq_lens": lens,
        "dtype": input.get("dtype"),
    }


def _pieces(head_size: int) -> int:
    if head_size % _PIECE:
        raise ValueError(f"head_size {head_size} is no multiple of {_PIECE}")
    return head_size // _PIECE


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Heads, blocks, the width of the block tables, and the longest sum that is taken."""
    blocks = [-(-length // dims["block_size"]) for length in lengths["seq_lens"]]
    size = dims["head_pieces"] * _PIECE
    return {
        "num_query_heads": dims["num_kv_heads"] * dims["heads_per_kv"],
        "head_size": size,
        "num_blocks": _total(blocks, dims["num_seqs"]) + dims["spare_blocks"],
        "max_blocks": max(blocks) + dims["spare_columns"],
        "longest": max(size, *lengths["seq_lens"]),
    }


def _total(pattern: Sequence[int], count: int) -> int:
    """The sum of `count` numbers that follow the pattern again and again."""
    rounds, rest = divmod(count, len(pattern))
    return rounds * sum(pattern) + sum(pattern[:rest])


def _lens(draw: Draw) -> Tensor:
    """Keys of each sequence, int64 [S]."""
    pattern = torch.tensor(draw.lengths["seq_lens"], dtype=torch.int64, device=draw.device)
    return pattern[torch.arange(draw.dims["num_seqs"], device=draw.device) % pattern.numel()]


def _caches(draw: Draw, k_std: float, v_std: float) -> tuple[Tensor, Tensor]:
    dims = draw.dims
    rows = (dims["num_blocks"], dims["num_kv_heads"])
    k_shape = (*rows, dims["head_pieces"], dims["block_size"], _PIECE)
    v_shape = (*rows, dims["head_size"], dims["block_size"])
    return draw.normal(k_shape, k_std, draw.dtype), draw.normal(v_shape, v_std, draw.dtype)


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: all N(0, 1), spare blocks too, and consecutive blocks."""
    dims, lens = draw.dims, _lens(draw)
    query = draw.normal((dims["num_seqs"], dims["num_query_heads"], dims["head_size"]), 1.0, draw.dtype)
    caches = _caches(draw, 1.0, 1.0)
    table = paging.consecutive_table(draw, -(-lens // dims["block_size"]), dims["max_blocks"])
    return _inputs(query, caches, table, lens)


def _inputs(query: Tensor, caches: tuple[Tensor, Tensor], table: Tensor, lens: Tensor) -> dict[str, Tensor]:
    return {
        "query": query,
        "k_cache": caches[0],
        "v_cache": caches[1],
        "block_tables": table,
        "seq_lens": lens.to(torch.int32),
    }


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """scaled_dot_product_attention on keys gathered by block, padded to the longest and masked where unequal.

    It keeps logits, softmax and sums in fp32 and rounds at most P to the operand dtype for the tensor cores;
    that one rounding is within the contract. Sequences go in chunks only to bound the memory of the copies;
    production cases are one chunk.
    """
    query, tables, lens = aligned(inputs["query"]), inputs["block_tables"], inputs["seq_lens"].tolist()
    if not lens:
        return {"out": torch.empty_like(query)}
    width = max(1, max(lens)) * inputs["k_cache"][0, :, :, 0].numel()
    step = max(1, min(paging.MOST_SEQUENCES, _GATHERED // width))
    parts = [
        _decode(query[at : at + step], inputs, tables[at : at + step], lens[at : at + step])
        for at in range(0, len(lens), step)
    ]
    return {"out": parts[0] if len(parts) == 1 else torch.cat(parts)}


def _decode(query: Tensor, inputs: Mapping[str, Tensor], tables: Tensor, lens: list[int]) -> Tensor:
    longest = max(lens)
    if not longest:
        return torch.zeros_like(query)
    used = tables[:, : -(-longest // inputs["v_cache"].shape[3])]
    # [S, blocks, Hkv, D/x, block_size, x] and [S, blocks, Hkv, D, block_size] to [S, Hkv, keys, D].
    k = aligned(inputs["k_cache"][used].permute(0, 2, 1, 4, 3, 5).flatten(4).flatten(2, 3))
    v = aligned(inputs["v_cache"][used].permute(0, 2, 1, 4, 3).flatten(2, 3))
    grouped = query.unflatten(1, (k.shape[1], -1))
    return paging.decode(grouped, k[:, :, :longest], v[:, :, :longest], lens).flatten(1, 2)


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64 on keys gathered row by row; for its bound see attention_forward/softmax.py."""
    lens = inputs["seq_lens"].long()
    block, row = paging.slots(inputs["block_tables"], lens, inputs["v_cache"].shape[3])
    k = inputs["k_cache"].permute(0, 3, 1, 2, 4)[block, row].flatten(2)
    v = inputs["v_cache"].permute(0, 3, 1, 2)[block, row]
    return {"out": packed_attention(inputs["query"], k, v, [1] * lens.numel(), lens.tolist())}


def cost(shape: Shape) -> Cost:
    """The two matrix products, 2 * 2 D operations per head and key.

    Read: the queries, the used rows of both caches, the used entries of the tables, and the lengths.
    """
    dims, lens = shape.dims, shape.lengths["seq_lens"]
    keys = _total(lens, dims["num_seqs"])
    entries = _total([-(-length // dims["block_size"]) for length in lens], dims["num_seqs"])
    queries = 2 * dims["num_seqs"] * dims["num_query_heads"] * dims["head_size"]
    cached = 2 * 2 * keys * dims["num_kv_heads"] * dims["head_size"]
    return Cost(
        flops={shape.dtype: float(4 * dims["head_size"] * dims["num_query_heads"] * keys)},
        read_bytes=queries + cached + 4 * (entries + dims["num_seqs"]),
        write_bytes=queries,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """At most two key heads with as many query heads each, three spare blocks, and sequences up to 2^18."""
    kv_heads = min(2, input["num_kv_heads"])
    heads = input["num_query_heads"] // input["num_kv_heads"] * kv_heads
    each = max(1, input.get("ctx_len", 0), *expand(input.get("seq_lens", ()))) * kv_heads * input["head_size"]
    seqs = min(input.get("num_seqs", 1), max(1, _SMALL // each - 1))
    changed = {"num_seqs": seqs, "num_query_heads": heads, "num_kv_heads": kv_heads, "spare_blocks": 3}
    return init, {**input, **changed}


def _case(
    lens: list[Any],
    heads: tuple[int, int] = (4, 2),
    size: int = 128,
    block: int = 16,
    dtype: str = "bf16",
    **more: Any,
) -> tuple[Init, Input]:
    query, kv = heads
    shape = {"num_query_heads": query, "num_kv_heads": kv, "head_size": size, "block_size": block}
    return {}, {"seq_lens": lens, **shape, "dtype": dtype, "spare_blocks": 3, **more}


ODD = (
    _case([1], (1, 1), 8),
    _case([9, 0, 3], (2, 1), 16, 8, "fp16"),
    _case([0], (3, 1), 64),  # nothing but a sequence without keys
    _case([15, 16, 17], (7, 1), 128, 16, "fp16"),
    _case([0, 33, 0, 0, 17, 0], (6, 2), 72),  # empty sequences first, between and last
    _case([127, 129], (3, 3), 128, spare_columns=3),
    _case([257], (8, 1), 256, 32, "fp16"),
    _case([255, 1, 256], (5, 5), 80, 32),
    _case([100, 31, 5], (40, 8), 40, 8, "fp16"),
    _case([48, 23, 25], (12, 2), 64, 24),  # blocks that are no power of two
    _case([513, 2], (16, 2), 64, 64, "fp16", spare_columns=5),
    _case([[33, 40]], (4, 1), 128, spare_blocks=0),
    _case([511, 64, 65, 63, 7], (2, 2), 96, 16, "fp16"),
    _case([1025], (3, 1), 16),
    _case([1023, 1, 1, 1], (4, 4), 24, 8),
    _case([2049], (8, 1), 64, 16, "fp16"),
    _case([33, 5], (71, 1), 64),  # as many query heads to a key head as Falcon has
    _case([130, 1], (3, 1), 32, 544),  # pages of a hybrid model
    _case([[3, 300]], (1, 1), 8, 8),
)


def _place(draw: Draw, lens: Tensor, pattern: probes.Pattern) -> dict[str, Tensor]:
    """Keys and values at permuted slots between loud noise: one foreign row read shows in the result."""
    dims = draw.dims
    heads = (dims["num_query_heads"], dims["num_kv_heads"], dims["head_size"])
    query, k, v = pattern(draw, probes.pack(draw, torch.ones_like(lens), lens, heads, draw.dtype))
    k_cache, v_cache = _caches(draw, 3.0, 50.0)
    blocks = -(-lens // dims["block_size"])
    table = paging.permuted_table(draw, blocks, dims["max_blocks"], dims["num_blocks"])
    block, row = paging.slots(table, lens, dims["block_size"])
    k_cache.permute(0, 3, 1, 2, 4)[block, row] = k.unflatten(2, (-1, _PIECE))
    v_cache.permute(0, 3, 1, 2)[block, row] = v
    return _inputs(query, (k_cache, v_cache), table, lens)


def _source(pattern: probes.Pattern) -> Source:
    return lambda draw: _place(draw, _lens(draw), pattern)


def ragged(draw: Draw) -> dict[str, Tensor]:
    """Peaked weights, and lengths anywhere up to the shape's own: they matter where those are equal too."""
    lens = _lens(draw)
    shorter = (draw.uniform(lens.shape) * lens).long() + lens.clamp(max=1)
    return _place(draw, shorter, probes.peaked)


def emptied(draw: Draw) -> dict[str, Tensor]:
    """Every other sequence without keys gives zeros, and does not touch the one beside it."""
    lens = _lens(draw)
    even = torch.arange(lens.numel(), device=lens.device) % 2 == 0
    return _place(draw, lens.masked_fill(even, 0), probes.peaked)


# Directed inputs by the gate that uses them.
PROBES: dict[str, dict[str, Source]] = {
    "accumulation": {name: _source(pattern) for name, pattern in probes.ACCUMULATION.items()},
    "sensitivity": {
        "ragged": ragged,
        "emptied": emptied,
        **{name: _source(pattern) for name, pattern in probes.SENSITIVITY.items()},
    },
}
