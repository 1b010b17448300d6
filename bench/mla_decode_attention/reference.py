"""mla_decode_attention: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: q [B, nhead, R + P] bf16, kv_cache [sum of seq_lens, 1, R + P] bf16 packed by sequence, seq_lens [B]
int32, out [B, nhead, R] bf16, with R = kv_lora_rank and P = qk_rope_head_dim. Formula: DeepSeek-AI,
"DeepSeek-V2" (2024), section 2.1, with the up-projections absorbed: every head's keys are the cached rows,
its values their first R entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from atrex.problem import Draw, Expected, Init, Input, Source, expand
from atrex.records import Cost, Shape
from bench.alignment import aligned
from bench.attention_forward.softmax import packed_attention

_SMALL = 1 << 18
_PADDED = 1 << 28  # elements of a padded copy of the cache: 512 MiB


def extents(init: Init, input: Input) -> dict[str, Any]:
    """`seq_lens`, or `batch_size` sequences of `ctx_len` keys. Raises ValueError where they contradict."""
    lens = expand(input["seq_lens"] if "seq_lens" in input else [[input["ctx_len"], input["batch_size"]]])
    if input.get("batch_size", len(lens)) != len(lens):
        raise ValueError(f"batch_size is {input['batch_size']}, but there are {len(lens)} seq_lens")
    names = ("nhead", "kv_lora_rank", "qk_rope_head_dim")
    return {**{name: input.get(name, init[name]) for name in names}, "seq_lens": lens}


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Sequences, cached rows and their size, and the longest sum that is taken."""
    lens, size = lengths["seq_lens"], dims["kv_lora_rank"] + dims["qk_rope_head_dim"]
    return {
        "batch_size": len(lens),
        "cached_tokens": sum(lens),
        "row_size": size,
        "longest": max(size, *lens, 0),
    }


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: q and kv_cache ~ N(0, 1)."""
    return _inputs(draw, _query(draw, 1.0).to(torch.bfloat16), _rows(draw, 1.0), _lens(draw))


def _query(draw: Draw, std: float) -> Tensor:
    shape = (draw.dims["batch_size"], draw.dims["nhead"], draw.dims["row_size"])
    return draw.normal(shape, std, torch.float32)


def _rows(draw: Draw, std: float) -> Tensor:
    return draw.normal((draw.dims["cached_tokens"], draw.dims["row_size"]), std, torch.float32)


def _lens(draw: Draw) -> Tensor:
    return torch.tensor(draw.lengths["seq_lens"], dtype=torch.int64, device=draw.device)


def _inputs(draw: Draw, q: Tensor, rows: Tensor, lens: Tensor) -> dict[str, Tensor]:
    return {
        "q": q.to(torch.bfloat16),
        "kv_cache": rows.to(torch.bfloat16)[:, None],
        "seq_lens": lens.to(torch.int32),
    }


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """scaled_dot_product_attention whose query rows are the heads, over a batch of equally long sequences.

    It keeps logits, softmax and sums in fp32 and rounds at most P to bf16 for the tensor cores; that one
    rounding is within the contract, while a bf16 matmul, softmax and matmul would round the logits too.
    Unequal sequences are padded with zeros and masked, a chunk at a time to bound memory; production cases
    have equal ones.
    """
    q, cache, rank = aligned(inputs["q"]), inputs["kv_cache"].squeeze(1), init["kv_lora_rank"]
    lens = inputs["seq_lens"].tolist()
    if len(set(lens)) <= 1:
        kv = aligned(cache).unflatten(0, (len(lens), lens[0] if lens else 1))[:, None]
        return {"out": F.scaled_dot_product_attention(q[:, None], kv, kv[..., :rank])[:, 0]}
    step = max(1, _PADDED // (max(lens) * q.shape[2]))
    rows, parts = cache.split(lens), list[Tensor]()
    for at in range(0, len(lens), step):
        kv = pad_sequence(rows[at : at + step], batch_first=True)[:, None]
        places = torch.arange(kv.shape[2], device=q.device)
        mask = (places < inputs["seq_lens"][at : at + step, None])[:, None, None]
        some = q[at : at + step, None]
        parts.append(F.scaled_dot_product_attention(some, kv, kv[..., :rank], attn_mask=mask)[:, 0])
    return {"out": torch.cat(parts)}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, in chunks; its bound is derived in attention_forward/softmax.py."""
    rows, lens = inputs["kv_cache"], inputs["seq_lens"].tolist()
    values = rows[..., : init["kv_lora_rank"]]
    return {"out": packed_attention(inputs["q"], rows, values, [1] * len(lens), lens)}


def cost(shape: Shape) -> Cost:
    """The two matrix products, 2 (R + P) + 2 R operations per head and cached row; every tensor once."""
    dims = shape.dims
    batch, rows, heads, size = (dims[name] for name in ("batch_size", "cached_tokens", "nhead", "row_size"))
    return Cost(
        flops={"bf16": float(2 * (size + dims["kv_lora_rank"]) * heads * rows)},
        read_bytes=2 * batch * heads * size + 2 * rows * size + 4 * batch,
        write_bytes=2 * batch * heads * dims["kv_lora_rank"],
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """At most three sequences, cut to 2^18 elements; the heads and the size of rows stay."""
    lens = expand(input["seq_lens"] if "seq_lens" in input else [[input["ctx_len"], input["batch_size"]]])[:3]
    size = input["kv_lora_rank"] + input["qk_rope_head_dim"]
    most = max(1, _SMALL // (size * max(1, len(lens))))
    return init, {**input, "batch_size": len(lens), "seq_lens": [min(length, most) for length in lens]}


def _case(lens: list[Any], nhead: int, rank: int = 512, rope: int = 64) -> tuple[Init, Input]:
    arguments = {"nhead": nhead, "kv_lora_rank": rank, "qk_rope_head_dim": rope}
    return arguments, {**arguments, "seq_lens": lens}


ODD = (
    _case([1], 1, 8, 8),
    _case([1], 16),
    _case([3, 1, 2], 5, 16, 8),
    _case([31, 32, 33], 7, 64, 16),
    _case([63, 1, 65], 17, 128, 32),
    _case([127, 129], 16),
    _case([257], 128, 512, 64),
    _case([1, 255, 1], 20, 256, 64),
    _case([[13, 37]], 8, 64, 64),
    _case([1025], 3, 64, 8),
    _case([513, 5], 33, 192, 40),  # sizes that are no power of two
    _case([2, 3, 5, 7, 11, 13, 17, 19, 23, 29], 1, 512, 64),
    _case([100, 100], 15, 576, 64),
    _case([64, 128, 192], 32, 128, 64),  # every last tile full
    _case([[2, 300], [1, 5]], 1, 16, 8),  # more sequences than a tile of them
)


def peaked(draw: Draw) -> dict[str, Tensor]:
    """Logits ~ N(0, 3), and other lengths of the same sum, so that they matter where the shape's are equal.

    What a sequence gives to the next is less than its own length, so each keeps a key.
    """
    lens = _lens(draw)
    if lens.numel() > 1:
        shift = (draw.uniform(lens.shape) * lens).long()
        lens = lens - shift + shift.roll(1)
    return _inputs(draw, _query(draw, 3.0), _rows(draw, 1.0), lens)


def _part(latent: bool) -> Source:
    def source(draw: Draw) -> dict[str, Tensor]:
        q, rank = _query(draw, 4.0), draw.dims["kv_lora_rank"]
        q[..., rank:] *= 0.0 if latent else (draw.dims["row_size"] / draw.dims["qk_rope_head_dim"]) ** 0.5
        q[..., :rank] *= 1.0 if latent else 0.0
        return _inputs(draw, q, _rows(draw, 1.0), _lens(draw))

    return source


def _places(draw: Draw) -> tuple[Tensor, Tensor, Tensor]:
    """Of each cached row its place in its sequence and that one's length; of each sequence its last row."""
    lens = _lens(draw)
    sequence = torch.repeat_interleave(lens)
    place = torch.arange(sequence.numel(), device=draw.device) - (lens.cumsum(0) - lens)[sequence]
    return place, lens[sequence], lens.cumsum(0) - 1


def _aligned(shift: int) -> Source:
    def source(draw: Draw) -> dict[str, Tensor]:
        rows = torch.where(draw.uniform((draw.dims["cached_tokens"], draw.dims["row_size"])) < 0.5, -1.0, 1.0)
        rows[:, : draw.dims["kv_lora_rank"]] *= 1 + draw.uniform((rows.shape[0], 1))
        target = (_places(draw)[2] + shift).clamp(0, max(0, rows.shape[0] - 1))
        q = rows[target, None].sign() * (16 * draw.dims["row_size"] ** -0.5)
        return _inputs(draw, q.expand(-1, draw.dims["nhead"], -1), rows, _lens(draw))

    return source


def _offset(logit: float) -> Source:
    def source(draw: Draw) -> dict[str, Tensor]:
        size = draw.dims["row_size"]
        rows = 1 + _rows(draw, size**0.5 / max(1.0, abs(logit)))
        return _inputs(draw, (1 + _query(draw, 0.02)) * (logit * size**-0.5), rows, _lens(draw))

    return source


def ascending(draw: Draw) -> dict[str, Tensor]:
    """Logits that rise along each sequence by up to 60: every tile of keys raises the running maximum."""
    rank, rope = draw.dims["kv_lora_rank"], draw.dims["qk_rope_head_dim"]
    place, length, _ = _places(draw)
    rows, q = _rows(draw, 1.0), _query(draw, 0.5)
    ramp = place / length.clamp(min=2) * (length / 240).clamp(max=1.0)
    rows[:, rank:] = ramp[:, None] + 0.1 * rows[:, rank:]
    q[..., rank:] = (1 + 0.2 * q[..., rank:]) * (60 * draw.dims["row_size"] ** 0.5 / rope)
    return _inputs(draw, q, rows, _lens(draw))


def late_peak(draw: Draw) -> dict[str, Tensor]:
    """Logits near 200 in each sequence's last quarter, near 0 before: an old maximum overflows."""
    rank, rope = draw.dims["kv_lora_rank"], draw.dims["qk_rope_head_dim"]
    place, length, _ = _places(draw)
    rows, q = _rows(draw, 1.0), _query(draw, 0.0)
    late = (place >= 3 * length // 4).to(rows.dtype)
    rows[:, rank:] = late[:, None] + 0.02 * rows[:, rank:]
    q[..., rank:] = 200 * draw.dims["row_size"] ** 0.5 / rope
    return _inputs(draw, q, rows, _lens(draw))


def _equal_weights(values: Callable[[Draw, Tensor, Tensor], Tensor]) -> Source:
    def source(draw: Draw) -> dict[str, Tensor]:
        rank = draw.dims["kv_lora_rank"]
        place, length, _ = _places(draw)
        rows = _rows(draw, 1.0)
        rows[:, :rank] = values(draw, place, length)
        # Zero queries: any other would have logits of the values' own size.
        return _inputs(draw, torch.zeros_like(_query(draw, 1.0)), rows, _lens(draw))

    return source


def _first_large(draw: Draw, place: Tensor, length: Tensor) -> Tensor:
    small = 1 + draw.uniform((place.numel(), draw.dims["kv_lora_rank"])) * 0.25
    return torch.where(place[:, None] == 0, (8 * length[:, None]).to(small.dtype), small)


def _halves(draw: Draw, place: Tensor, length: Tensor) -> Tensor:
    sign = torch.where(2 * place < length, 1.0, -1.0)[:, None]
    column = torch.where(draw.uniform((draw.dims["kv_lora_rank"],)) < 0.5, -1.0, 1.0)
    return sign * column + draw.normal((place.numel(), column.numel()), 0.25, torch.float32)


def _large(draw: Draw, place: Tensor, length: Tensor) -> Tensor:
    return 4096 * (1 + draw.uniform((place.numel(), draw.dims["kv_lora_rank"])))


def cancelling_logits(draw: Draw) -> dict[str, Tensor]:
    """Products q k whose sum over half of a row is in the thousands and cancels to about its size's root."""
    size = draw.dims["row_size"]
    half = torch.where(torch.arange(size, device=draw.device) * 2 < size, 6.0, -6.0)
    return _inputs(draw, half * (1 + _query(draw, 0.02)), 6 + _rows(draw, 0.15), _lens(draw))


# Directed inputs by the gate that uses them.
PROBES: dict[str, dict[str, Source]] = {
    "accumulation": {
        "high_logits": _offset(200.0),  # logits in a narrow dtype are off by halves
        "stagnation": _equal_weights(_first_large),  # a narrow running sum loses all but the first value
        "cancellation": _equal_weights(_halves),  # partial sums grow and then cancel
        "overflow": _equal_weights(_large),  # a sum of 16 is past the range of fp16
        "cancelling_logits": cancelling_logits,
    },
    "sensitivity": {
        "peaked": peaked,
        "latent_only": _part(latent=True),
        "rope_only": _part(latent=False),  # the part of a key that is no value decides
        "last_key": _aligned(0),  # an end one too early loses the whole weight
        "next_key": _aligned(1),  # an end one too late finds the first key of the next sequence
        "low_logits": _offset(-120.0),  # a padding key of logit 0 takes the whole weight
        "ascending": ascending,
        "late_peak": late_peak,
    },
}
