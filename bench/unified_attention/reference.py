"""unified_attention: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: q [T, Hq, D], k_cache and v_cache [blocks, block_size, Hkv, D] bf16, cu_seqlens_q [S+1], seqused_k
[S], block_table [S, max_blocks] int32, out [T, Hq, D] bf16. Formula: Vaswani et al., "Attention Is All You
Need" (2017), eq. 1, with grouped heads (Ainslie et al., "GQA", 2023), over a cache in blocks (Kwon et al.,
"PagedAttention", 2023). Query i of q queries over k keys sees keys 0 .. k-q+i; the domain is q = k (prefill)
or q = 1 (decode).
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
from bench.unified_attention import paging

_SMALL = 1 << 18
_GATHERED = 1 << 28  # elements of a padded copy of the keys of decoding sequences: 512 MiB


def extents(init: Init, input: Input) -> dict[str, Any]:
    """`seq_lens` are the keys, and the queries too unless the case has `query_lens`.

    Raises ValueError for what is outside the domain.
    """
    heads, kv_heads = input["num_query_heads"], input["num_kv_heads"]
    if kv_heads < 1 or heads % kv_heads:
        raise ValueError(f"num_query_heads {heads} is no multiple of num_kv_heads {kv_heads}")
    keys = expand(input["seq_lens"])
    queries = expand(input.get("query_lens", input["seq_lens"]))
    if input.get("num_seqs", len(keys)) != len(keys) or len(queries) != len(keys):
        raise ValueError(f"has {len(keys)} seq_lens; num_seqs and query_lens must agree with that")
    for n, m in zip(queries, keys, strict=True):
        if n != m and not (n == 1 and m):
            raise ValueError(f"has {n} queries over {m} keys; legal are as many as keys, or one")
    return {
        "num_kv_heads": kv_heads,
        "heads_per_kv": heads // kv_heads,
        "head_size": input["head_size"],
        "block_size": input["block_size"],
        "spare_blocks": input.get("spare_blocks", 4),
        "spare_columns": input.get("spare_columns", 0),
        "seq_lens": keys,
        "query_lens": queries,
    }


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Heads, tokens, blocks, the width of the block table, and the longest sum that is taken."""
    keys = lengths["seq_lens"]
    blocks = [-(-length // dims["block_size"]) for length in keys]
    return {
        "num_query_heads": dims["num_kv_heads"] * dims["heads_per_kv"],
        "num_seqs": len(keys),
        "boundaries": len(keys) + 1,
        "token_count": sum(lengths["query_lens"]),
        "num_blocks": sum(blocks) + dims["spare_blocks"],
        "max_blocks": max(blocks, default=0) + dims["spare_columns"],
        "longest": max(dims["head_size"], *keys, 0),
    }


def _cache_shape(dims: Mapping[str, int]) -> tuple[int, int, int, int]:
    return dims["num_blocks"], dims["block_size"], dims["num_kv_heads"], dims["head_size"]


def _lens(draw: Draw) -> tuple[Tensor, Tensor]:
    """Keys and blocks of each sequence, int64."""
    keys = torch.tensor(draw.lengths["seq_lens"], dtype=torch.int64, device=draw.device)
    return keys, -(-keys // draw.dims["block_size"])


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: all N(0, 1), spare blocks too, and consecutive blocks."""
    dims = draw.dims
    q = draw.normal((dims["token_count"], dims["num_query_heads"], dims["head_size"]), 1.0, torch.bfloat16)
    k_cache, v_cache = (draw.normal(_cache_shape(dims), 1.0, torch.bfloat16) for _ in range(2))
    keys, blocks = _lens(draw)
    table = paging.consecutive_table(draw, blocks, dims["max_blocks"])
    return _inputs(draw, q, k_cache, v_cache, keys, table)


def _inputs(
    draw: Draw, q: Tensor, k_cache: Tensor, v_cache: Tensor, keys: Tensor, table: Tensor
) -> dict[str, Tensor]:
    return {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "cu_seqlens_q": probes.prefix_sums(draw.lengths["query_lens"], draw.device),
        "seqused_k": keys.to(torch.int32),
        "block_table": table,
    }


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """scaled_dot_product_attention over batches of sequences of one length, on keys gathered by block.

    Its fused kernels keep logits, softmax and sums in fp32 and round P to bf16 for the tensor cores; that one
    rounding is within the contract, and plain fp32 would be several times slower than what anybody runs. A
    loop over distinct prefill lengths, since fused kernels take rectangular batches (production cases have
    one); sequences with one query are padded to the longest and masked, a chunk at a time to bound memory.
    """
    q, starts = aligned(inputs["q"]), inputs["cu_seqlens_q"]
    pairs = [(n, m) for n, m in torch.stack((starts.diff(), inputs["seqused_k"])).T.tolist()]
    if len(set(pairs)) == 1 and pairs[0][0] == pairs[0][1] > 0:
        batch = q.unflatten(0, (len(pairs), pairs[0][0]))
        return {"out": _prefill(batch, inputs, inputs["block_table"], pairs[0][1]).flatten(0, 1).contiguous()}
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    first = starts[:-1].long()
    for length in sorted({m for n, m in pairs if n > 1}):
        alike = [i for i, (n, m) in enumerate(pairs) if n > 1 and m == length]
        members = torch.tensor(alike, device=q.device)
        rows = first[members, None] + torch.arange(length, device=q.device)
        out[rows] = _prefill(q[rows], inputs, inputs["block_table"][members], length)
    single = [i for i, (n, _) in enumerate(pairs) if n == 1]
    width = max((pairs[i][1] for i in single), default=1) * inputs["k_cache"][0, 0].numel()
    step = max(1, min(paging.MOST_SEQUENCES, _GATHERED // width))
    for at in range(0, len(single), step):
        some = torch.tensor(single[at : at + step], device=q.device)
        lens = [pairs[i][1] for i in single[at : at + step]]
        out[first[some]] = _decode(q[first[some]], inputs, inputs["block_table"][some], lens)
    return {"out": out}


def _gather(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """The first `length` rows of each sequence: [S, Hkv, length, D]."""
    blocks = aligned(cache[table[:, : -(-length // cache.shape[1])]])
    return blocks.flatten(1, 2)[:, :length].transpose(1, 2)


def _prefill(q: Tensor, inputs: Mapping[str, Tensor], table: Tensor, length: int) -> Tensor:
    """Causal attention of q [S, n, Hq, D] over as many keys."""
    k, v = (_gather(inputs[name], table, length) for name in ("k_cache", "v_cache"))
    grouped = q.shape[2] != k.shape[1]
    out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True, enable_gqa=grouped)
    return out.transpose(1, 2)


def _decode(q: Tensor, inputs: Mapping[str, Tensor], table: Tensor, lens: list[int]) -> Tensor:
    """Attention of q [S, Hq, D], one query per sequence, over `lens` keys each."""
    k, v = (_gather(inputs[name], table, max(lens)) for name in ("k_cache", "v_cache"))
    return paging.decode(q.unflatten(1, (k.shape[1], -1)), k, v, lens).flatten(1, 2)


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64 on keys gathered row by row, chunked over queries; its bound is in softmax.py."""
    keys = inputs["seqused_k"].long()
    block, row = paging.slots(inputs["block_table"], keys, inputs["k_cache"].shape[1])
    k, v = (inputs[name][block, row] for name in ("k_cache", "v_cache"))
    q_lens = inputs["cu_seqlens_q"].diff().tolist()
    return {"out": packed_attention(inputs["q"], k, v, q_lens, keys.tolist(), causal=True)}


def cost(shape: Shape) -> Cost:
    """The two matrix products over visible pairs, 2 * 2 D operations per head and pair.

    Read: q, the used rows of both caches, the used entries of the table, and the lengths. Written: out.
    """
    dims, keys, queries = shape.dims, shape.lengths["seq_lens"], shape.lengths["query_lens"]
    pairs = sum(n * m - n * (n - 1) // 2 for n, m in zip(queries, keys, strict=True))
    entries = sum(-(-length // dims["block_size"]) for length in keys)
    tokens = 2 * dims["token_count"] * dims["num_query_heads"] * dims["head_size"]
    cached = 2 * 2 * sum(keys) * dims["num_kv_heads"] * dims["head_size"]
    return Cost(
        flops={"bf16": float(4 * dims["head_size"] * dims["num_query_heads"] * pairs)},
        read_bytes=tokens + cached + 4 * (entries + dims["boundaries"] + dims["num_seqs"]),
        write_bytes=tokens,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """At most two key heads with as many query heads each, and up to three sequences cut to 2^18 elements."""
    kv_heads = min(2, input["num_kv_heads"])
    heads = input["num_query_heads"] // input["num_kv_heads"] * kv_heads
    lens = expand(input["seq_lens"])[:3]
    most = max(1, _SMALL // (heads * input["head_size"] * max(1, len(lens))))
    changed = {"num_seqs": len(lens), "num_query_heads": heads, "num_kv_heads": kv_heads}
    reduced = {**input, **changed, "seq_lens": [min(length, most) for length in lens]}
    if "query_lens" in input:
        pairs = zip(expand(input["query_lens"])[:3], reduced["seq_lens"], strict=True)
        reduced["query_lens"] = [min(pair) for pair in pairs]
    return init, reduced


def _case(
    keys: list[Any], heads: tuple[int, int] = (4, 2), size: int = 72, block: int = 16, **more: Any
) -> tuple[Init, Input]:
    query, kv = heads
    shape = {"num_query_heads": query, "num_kv_heads": kv, "head_size": size, "block_size": block}
    return {}, {"seq_lens": keys, **shape, **more}


ODD = (
    _case([1], (1, 1), 8),
    _case([7, 2], (20, 20), 64),
    _case([15, 16, 17], (7, 1), 128),
    _case([63, 65, 1], (10, 2), 80, spare_columns=3),
    _case([127, 129], (5, 1), 128, spare_blocks=0),
    _case([0, 33, 0, 0, 17, 0], (6, 2), 192),  # empty sequences first, between and last
    _case([0, 0]),
    _case([33, 2], (2, 2), 24, 8),
    _case([257], (4, 4), 72, 24),  # blocks that are no power of two
    _case([100, 31, 5], (8, 2), 40, 8),
    _case([513], (3, 1), 16, 64),
    _case([130, 70], (2, 2), 256, 32),
    _case([16, 32, 48], (14, 2), 128),  # every last block full
    _case(
        [25, 9], (3, 1), 16, 24, query_lens=[25, 1]
    ),  # blocks that are no power of two, three heads a key head
    # One query per sequence: decoding.
    _case([1], (8, 1), 128, query_lens=[1]),
    _case([129], (7, 1), 72, query_lens=[1], spare_columns=5),
    _case([1025, 5, 16, 17], (16, 2), 64, query_lens=[1, 1, 1, 1]),
    _case([[33, 40]], (4, 1), 128, query_lens=[[1, 40]]),
    _case([300, 1, 2, 3, 500], (2, 2), 256, 24, query_lens=[[1, 5]]),
    _case([257, 0, 40], (4, 2), 64, query_lens=[1, 0, 1]),
    # Both in one batch.
    _case([2, 0, 40], (4, 2), 64, query_lens=[2, 0, 1]),  # as many tokens as sequences
    _case([19, 9, 1], (4, 2), 16, 8, query_lens=[1, 9, 1]),
    _case([40, 40, 1, 97], (10, 1), 128, query_lens=[40, 1, 1, 97]),
    _case([200, 65, 65, 0, 31, 31], (6, 2), 80, query_lens=[1, 65, 1, 0, 31, 1], spare_columns=2),
    _case([3, 260, 3, 129], (28, 4), 24, 8, query_lens=[3, 1, 1, 129]),
    _case([33, 2], (71, 1), 32, query_lens=[1, 2]),  # as many query heads to a key head as Falcon has
    _case([600, 130], (3, 1), 16, 544, query_lens=[1, 130]),  # pages of a hybrid model
    _case([300], (2, 1), 16, 256),
)

PATHS = (_case([300, 1, 40], (4, 2), 128, query_lens=[1, 1, 1]),)  # decoding, which no production case is


def _place(draw: Draw, at: probes.Packed, rows: probes.Rows) -> dict[str, Tensor]:
    """Keys and values at permuted slots between loud noise: one foreign row read shows in the result."""
    q, k, v = rows
    shape = _cache_shape(draw.dims)
    k_cache, v_cache = (draw.normal(shape, loud, torch.bfloat16) for loud in (3.0, 50.0))
    keys, blocks = _lens(draw)
    table = paging.permuted_table(draw, blocks, draw.dims["max_blocks"], shape[0])
    block, row = paging.slots(table, keys, shape[1])
    k_cache[block, row], v_cache[block, row] = k, v
    return _inputs(draw, q, k_cache, v_cache, keys, table)


def _packed(draw: Draw) -> probes.Packed:
    heads = (draw.dims["num_query_heads"], draw.dims["num_kv_heads"], draw.dims["head_size"])
    return probes.pack(draw, draw.lengths["query_lens"], draw.lengths["seq_lens"], heads, torch.bfloat16)


def _source(pattern: probes.Pattern) -> Source:
    def source(draw: Draw) -> dict[str, Tensor]:
        at = _packed(draw)
        return _place(draw, at, pattern(draw, at))

    return source


def shared_blocks(draw: Draw) -> dict[str, Tensor]:
    """Sequences that share their first block, as those with a common prefix do."""
    at = _packed(draw)
    inputs = _place(draw, at, probes.peaked(draw, at))
    owners = inputs["seqused_k"].nonzero().flatten()
    if owners.numel():
        # Of the longest, so that every row that others read is a key and not noise.
        longest = inputs["seqused_k"].argmax()
        inputs["block_table"][owners, 0] = inputs["block_table"][longest, 0].clone()
    return inputs


# Directed inputs by the gate that uses them.
PROBES: dict[str, dict[str, Source]] = {
    "accumulation": {name: _source(pattern) for name, pattern in probes.ACCUMULATION.items()},
    "sensitivity": {
        **{name: _source(pattern) for name, pattern in probes.SENSITIVITY.items()},
        "shared_blocks": shared_blocks,
    },
}
