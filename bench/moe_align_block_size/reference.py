"""moe_align_block_size: inputs, eager reference, oracle, directed probes and cost.

Shapes: topk_ids [T, k] int32; outputs int32: sorted_token_ids [P], expert_ids [P / block_size] and
num_tokens_post_pad [1] = P, where P is the sum over experts of their count rounded up to whole blocks. What
grouped matrix products of a mixture of experts need so that each of their tiles has one expert.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape
from bench.fused_moe import routing

_DEVIATIONS = 12  # of a binomial count on either side of its mean: the rest weighs less than 1e-30


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The most blocks there can be: every expert with an id wastes at most block_size - 1 places."""
    size, pairs = int(init["block_size"]), dims["token_count"] * dims["top_k"]
    blocks = (pairs + min(pairs, dims["num_experts"]) * (size - 1)) // size
    return {"most_blocks": blocks, "most_padded": blocks * size}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like: independent uniform ids."""
    return {"topk_ids": routing.uniform(draw)}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: a stable sort, then a shift by the padding so far."""
    ids, size = inputs["topk_ids"].flatten().long(), init["block_size"]
    by_expert, order = ids.sort(stable=True)
    counts = torch.bincount(ids, minlength=init["num_experts"])
    blocks = (counts + size - 1) // size
    starts, padded_starts = counts.cumsum(0) - counts, (blocks.cumsum(0) - blocks) * size
    total = blocks.sum() * size
    place = torch.arange(ids.numel(), device=ids.device) + (padded_starts - starts)[by_expert]
    sorted_ids = torch.full((int(total),), ids.numel(), dtype=torch.int32, device=ids.device)
    sorted_ids[place] = order.to(torch.int32)
    experts = torch.arange(init["num_experts"], dtype=torch.int32, device=ids.device)
    return {
        "sorted_token_ids": sorted_ids,
        "expert_ids": experts.repeat_interleave(blocks),
        "num_tokens_post_pad": total.to(torch.int32).reshape(1),
    }


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The same without a sort over ids: one entry per place, experts and padding told apart by key.

    Real ids get the key (expert, index) and the padding of an expert the key (expert, T k); sorting the
    keys, which are all different up to equal paddings, puts every one in its place.
    """
    ids, size = inputs["topk_ids"].flatten().long(), init["block_size"]
    pairs = ids.numel()
    named, counts = ids.unique(return_counts=True)
    padding = named.repeat_interleave(-counts % size)
    real = ids * (pairs + 1) + torch.arange(pairs, device=ids.device)
    keys = torch.cat((real, padding * (pairs + 1) + pairs)).sort().values
    value = {
        "sorted_token_ids": keys % (pairs + 1),
        "expert_ids": keys[::size] // (pairs + 1),
        "num_tokens_post_pad": torch.tensor([keys.numel()], device=ids.device),
    }
    return {name: Expected(v.double(), torch.zeros_like(v, dtype=torch.float64)) for name, v in value.items()}


def cost(shape: Shape) -> Cost:
    """Every id is read once; for each block of uniform routing its places and its expert are written."""
    pairs = shape.dims["token_count"] * shape.dims["top_k"]
    size, experts = int(shape.init["block_size"]), shape.dims["num_experts"]  # type: ignore[arg-type]
    blocks = round(experts * _expected_blocks(pairs, experts, size))
    return Cost(flops={}, read_bytes=4 * pairs, write_bytes=4 * blocks * (size + 1) + 4)


@cache
def _expected_blocks(pairs: int, experts: int, size: int) -> float:
    """Blocks of one expert on average: the mean of ceil(c / size), c binomial (pairs, 1 / experts)."""
    if experts == 1 or not pairs:
        return float(math.ceil(pairs / size))
    mean, share = pairs / experts, 1 / experts
    reach = _DEVIATIONS * math.sqrt(mean * (1 - share)) + _DEVIATIONS**2
    low, high = max(1, math.floor(mean - reach)), min(pairs, math.ceil(mean + reach))
    logs = math.log(share), math.log1p(-share)
    total = 0.0
    for count in range(low, high + 1):
        choose = math.lgamma(pairs + 1) - math.lgamma(count + 1) - math.lgamma(pairs - count + 1)
        probability = math.exp(choose + count * logs[0] + (pairs - count) * logs[1])
        total += probability * math.ceil(count / size)
    return total


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """Fewer tokens for as many experts, and blocks small enough that some experts fill one."""
    return init, {**input, "token_count": min(input["token_count"], 521)}


def _odd(tokens: int, top_k: int, experts: int, size: int) -> tuple[Init, Input]:
    init = {"block_size": size, "num_experts": experts}
    return init, {"token_count": tokens, "top_k": top_k, "num_experts": experts}


ODD = (
    _odd(1, 1, 1, 1),
    _odd(0, 8, 128, 128),  # no id: no block
    _odd(1, 8, 1, 16),
    _odd(1, 1, 1000, 64),  # one expert of many
    _odd(2, 3, 5, 1),  # blocks of one: no padding
    _odd(16, 1, 1, 16),  # exactly full
    _odd(17, 1, 1, 16),  # one too many
    _odd(127, 1, 1, 128),
    _odd(31, 7, 33, 17),
    _odd(63, 2, 3, 100),
    _odd(65, 8, 129, 4),
    _odd(257, 6, 160, 32),
    _odd(511, 8, 257, 64),  # more experts than threads of a usual block
    _odd(1000, 4, 1025, 16),
    _odd(1023, 10, 512, 256),
    _odd(2049, 2, 8, 128),
    _odd(4099, 1, 64, 48),
    _odd(521, 64, 1, 1),  # more ids of one expert, and blocks, than 16 bits count
    _odd(40, 64, 300, 8),
    _odd(1500, 2, 3, 4),  # more blocks of an expert than a program has threads, and of each
    _odd(5, 2, 4099, 16),  # more experts than one block scans
)


def routed_zipf(draw: Draw) -> dict[str, Tensor]:
    """Very unequal counts, repeats within tokens, and experts without any id."""
    return {"topk_ids": routing.zipf(draw)}


def one_expert(draw: Draw) -> dict[str, Tensor]:
    """Every id the same."""
    return {"topk_ids": routing.one_expert(draw)}


def few_experts(draw: Draw) -> dict[str, Tensor]:
    """The first and the last expert only."""
    return {"topk_ids": routing.few_experts(draw)}


def repeated(draw: Draw) -> dict[str, Tensor]:
    """All k ids of a token alike."""
    return {"topk_ids": routing.repeated(draw)}


def descending(draw: Draw) -> dict[str, Tensor]:
    """Ids from the last expert to the first: indices that ascend only where an expert repeats."""
    tokens, top_k, experts = (draw.dims[name] for name in ("token_count", "top_k", "num_experts"))
    index = torch.arange(tokens * top_k, device=draw.device)
    ids = experts - 1 - index * experts // max(1, tokens * top_k)
    return {"topk_ids": ids.view(tokens, top_k).to(torch.int32)}


def full_blocks(draw: Draw) -> dict[str, Tensor]:
    """Runs of exactly block_size equal ids: counts that need no padding, and the last one that may."""
    tokens, top_k, experts = (draw.dims[name] for name in ("token_count", "top_k", "num_experts"))
    index = torch.arange(tokens * top_k, device=draw.device)
    ids = index // draw.init["block_size"] * 7 % experts
    return {"topk_ids": ids.view(tokens, top_k).to(torch.int32)}


# Directed inputs by the gate that uses them.
PROBES = {
    "sensitivity": {
        "zipf": routed_zipf,
        "one_expert": one_expert,
        "few_experts": few_experts,
        "repeated": repeated,
        "descending": descending,
        "full_blocks": full_blocks,
    },
}
