"""reshape_and_cache: inputs, eager reference, oracle, directed probes and cost.

Shapes: key and value [T, H, D] bf16, key_cache and value_cache [blocks, block_size, H, D] bf16,
slot_mapping [T] int64; both caches come back. Formula: the write to a paged cache (Kwon et al.,
"PagedAttention", arXiv:2309.06180), out of place: row t goes to flat slot slot_mapping[t] of a copy, and
nowhere if that is negative. Slots that are not negative are distinct.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_PAIRS = (("key", "key_cache"), ("value", "value_cache"))


def extents(init: Init, input: Input) -> dict[str, int]:
    """A case's `shape` and `block_size`; `blocks` where it says them.

    Cases do not: the caches then have just the blocks that all tokens fill, ceil(T / block_size).
    That is what the published traffic of all eight cases comes to (1 token, 1 block; 520, 33).
    """
    tokens, heads, head_size = input["shape"]
    size = input["block_size"]
    blocks = input.get("blocks", max(1, -(-tokens // size)))
    return {
        "tokens": tokens,
        "num_heads": heads,
        "head_size": head_size,
        "block_size": size,
        "num_blocks": blocks,
    }


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Slots of a cache."""
    return {"slots": dims["num_blocks"] * dims["block_size"]}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like inputs: key, value ~ N(0, 1), caches of zeros, slots from 0 on.

    Tokens for which there is no slot (more of them than slots) are skipped.
    """
    slots = torch.arange(draw.dims["tokens"], device=draw.device)
    slots[draw.dims["slots"] :] = -1
    caches = {name: torch.zeros(_cache(draw), dtype=torch.bfloat16, device=draw.device) for _, name in _PAIRS}
    return {**_rows(draw), **caches, "slot_mapping": slots}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it.

    Copies with a spare row for the tokens that are skipped: selecting the others would make the host
    wait for their number.
    """
    slots = inputs["slot_mapping"]
    outputs: dict[str, Tensor] = {}  # dynamo does not trace a subscripted dict
    for rows, name in _PAIRS:
        cache = inputs[name].flatten(0, 1)
        count = cache.shape[0]
        copy = cache.new_empty((count + 1, *cache.shape[1:]))
        copy[:count] = cache
        copy.index_copy_(0, torch.where(slots < 0, count, slots), inputs[rows])
        outputs[name] = copy[:count].view(inputs[name].shape)
    return outputs


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """For each slot the token that is written to it, if there is one; exact, so without any error.

    The other way round than the reference: a search of slots among the sorted slot_mapping, and a gather.
    """
    mapping = inputs["slot_mapping"]
    result = dict[str, Expected]()
    order = mapping.argsort()
    for rows, name in _PAIRS:
        cache = inputs[name]
        value = cache.flatten(0, 1).clone()
        if mapping.shape[0]:
            every = torch.arange(value.shape[0], device=cache.device)
            at = torch.searchsorted(mapping[order], every).clamp(max=mapping.shape[0] - 1)
            written = mapping[order][at] == every
            value[written] = inputs[rows][order[at[written]]]
        result[name] = Expected(value.view(cache.shape), value.new_zeros(()).expand(cache.shape))
    return result


def cost(shape: Shape) -> Cost:
    """No arithmetic; the fewest bytes of an out-of-place copy: both caches read and written whole.

    Every row and every slot number is read once.
    """
    width = 2 * shape.dims["num_heads"] * shape.dims["head_size"]
    caches, rows = 2 * shape.dims["slots"] * width, 2 * shape.dims["tokens"] * width
    return Cost(
        flops={"bf16": 0.0},
        read_bytes=caches + rows + 8 * shape.dims["tokens"],
        write_bytes=caches,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """Fewer tokens, which leave as many slots of the last block unused; the same heads and blocks."""
    tokens, heads, head_size = input["shape"]
    size = input["block_size"]
    most = max(1, (1 << 17) // (heads * head_size * size)) * size
    if tokens > most:
        tokens = most - size + (tokens % size or size)
    return init, {**input, "shape": [tokens, heads, head_size]}


def _odd(tokens: int, heads: int, head_size: int, block_size: int, blocks: int) -> tuple[Init, Input]:
    return {}, {"shape": [tokens, heads, head_size], "block_size": block_size, "blocks": blocks}


# No token, one slot, caches that are nearly empty or that tokens fill to the last slot, more tokens
# than slots (the rest is skipped), blocks of 1 and of no power of two, rows that are no multiple of 16
# bytes, and more blocks than the y extent of a CUDA grid.
ODD = (
    _odd(0, 4, 128, 16, 2),
    _odd(1, 1, 1, 1, 1),
    _odd(1, 4, 128, 16, 9),
    _odd(2, 1, 128, 1, 7),
    _odd(3, 2, 256, 16, 33),
    _odd(7, 3, 80, 16, 5),
    _odd(13, 8, 64, 32, 3),
    _odd(16, 4, 128, 16, 1),
    _odd(17, 4, 128, 16, 2),
    _odd(31, 1, 7, 5, 11),
    _odd(33, 5, 33, 16, 3),
    _odd(63, 2, 72, 128, 2),
    _odd(65, 16, 128, 16, 6),
    _odd(64, 2, 96, 256, 1),
    _odd(100, 1, 576, 64, 3),
    _odd(127, 3, 100, 7, 19),
    _odd(129, 2, 128, 16, 65),
    _odd(40, 2, 64, 16, 1),
    _odd(3, 1, 576, 4, 2),
    _odd(2, 1, 24, 3, 1),
    _odd(513, 1, 40, 12, 45),
    _odd(3, 64, 128, 16, 2),
    _odd(2, 5, 1000, 4, 2),
    _odd(1025, 1, 16, 16, 127),
    _odd(9, 1, 8, 1, 65537),
    _odd(65537, 1, 2, 1024, 65),
)


def _cache(draw: Draw) -> tuple[int, int, int, int]:
    dims = draw.dims
    return dims["num_blocks"], dims["block_size"], dims["num_heads"], dims["head_size"]


def _rows(draw: Draw) -> dict[str, Tensor]:
    shape = (draw.dims["tokens"], draw.dims["num_heads"], draw.dims["head_size"])
    return {name: draw.normal(shape, 1.0, torch.bfloat16) for name, _ in _PAIRS}


def _old(draw: Draw) -> dict[str, Tensor]:
    """Caches full of what earlier calls wrote."""
    return {name: draw.normal(_cache(draw), 1.0, torch.bfloat16) for _, name in _PAIRS}


def _scattered(draw: Draw) -> Tensor:
    """Distinct slots in a random order, as many as there are, and -1 for tokens that get none."""
    tokens = draw.dims["tokens"]
    slots = draw.permutation(draw.dims["slots"])[:tokens]
    return torch.cat((slots, slots.new_full((tokens - slots.shape[0],), -1)))[draw.permutation(tokens)]


def scattered(draw: Draw) -> dict[str, Tensor]:
    """Old caches, slots in a random order, and every sixth token skipped: its slot keeps the old row."""
    slots = _scattered(draw)
    slots[2::6] = -1
    return {**_rows(draw), **_old(draw), "slot_mapping": slots}


def all_written(draw: Draw) -> dict[str, Tensor]:
    """No token skipped while there are slots, in a random order: what is left over keeps the old rows."""
    return {**_rows(draw), **_old(draw), "slot_mapping": _scattered(draw)}


def all_skipped(draw: Draw) -> dict[str, Tensor]:
    """Not one token written: plain copies. A -1 taken for the last slot, or for slot 0, is seen."""
    return {**_rows(draw), **_old(draw), "slot_mapping": torch.full_like(_scattered(draw), -1)}


def backwards(draw: Draw) -> dict[str, Tensor]:
    """Slots from the last one down, with -1 between them: blocks are filled against the order of tokens."""
    token = torch.arange(draw.dims["tokens"], device=draw.device)
    slots = draw.dims["slots"] - 1 - token
    slots[slots < 0] = -1
    slots[token % 5 == 3] = -1
    return {**_rows(draw), **_old(draw), "slot_mapping": slots}


# Directed inputs by the gate that uses them. There is no arithmetic to accumulate.
PROBES = {
    "sensitivity": {
        "scattered": scattered,
        "all_written": all_written,
        "all_skipped": all_skipped,
        "backwards": backwards,
    },
}
