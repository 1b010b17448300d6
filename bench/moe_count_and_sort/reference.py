"""moe_count_and_sort: inputs, eager reference, oracle, directed probes and cost.

Shapes: topk_ids [T, k] int32; outputs int32: sorted_token_ids [T k] (flat indices by expert, ascending
within one), expert_token_counts [E], cumsum [E + 1] (exclusive prefix sums of the counts, the last T k). A
counting sort.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input
from atrex.records import Cost, Shape
from bench.fused_moe import routing


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Ids in all, and bounds between experts."""
    return {"pairs": dims["token_count"] * dims["top_k"], "bounds": dims["num_experts"] + 1}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like: independent uniform ids."""
    return {"topk_ids": routing.uniform(draw)}


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it."""
    ids = inputs["topk_ids"].flatten()
    counts = torch.bincount(ids, minlength=init["num_experts"]).to(torch.int32)
    bounds = torch.zeros(init["num_experts"] + 1, dtype=torch.int32, device=ids.device)
    torch.cumsum(counts, 0, dtype=torch.int32, out=bounds[1:])
    return {
        "sorted_token_ids": ids.argsort(stable=True).to(torch.int32),
        "expert_token_counts": counts,
        "cumsum": bounds,
    }


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The same by unique keys expert * T k + index, whose order is the only one; bounds by binary search."""
    ids = inputs["topk_ids"].flatten().long()
    pairs = max(1, ids.numel())
    keys = (ids * pairs + torch.arange(ids.numel(), device=ids.device)).sort().values
    bounds = torch.searchsorted(keys, torch.arange(init["num_experts"] + 1, device=ids.device) * pairs)
    value = {"sorted_token_ids": keys % pairs, "expert_token_counts": bounds.diff(), "cumsum": bounds}
    return {name: Expected(v.double(), torch.zeros_like(v, dtype=torch.float64)) for name, v in value.items()}


def cost(shape: Shape) -> Cost:
    """Every id is read once, every index, count and bound written once."""
    pairs, experts = shape.dims["pairs"], shape.dims["num_experts"]
    return Cost(flops={}, read_bytes=4 * pairs, write_bytes=4 * (pairs + 2 * experts + 1))


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """Fewer tokens for as many experts."""
    return init, {**input, "token_count": min(input["token_count"], 521)}


def _odd(tokens: int, top_k: int, experts: int, size: int = 128) -> tuple[Init, Input]:
    init = {"num_experts": experts, "block_size": size}
    return init, {"token_count": tokens, "top_k": top_k, "num_experts": experts}


ODD = (
    _odd(1, 1, 1),
    _odd(0, 8, 128),  # no id: counts and bounds of zero
    _odd(1, 8, 1),
    _odd(1, 1, 1000),  # one expert of many
    _odd(2, 3, 5, 1),  # block_size must not matter
    _odd(17, 1, 1, 16),
    _odd(31, 7, 33),
    _odd(63, 2, 3),
    _odd(65, 8, 129, 64),
    _odd(257, 6, 160),
    _odd(511, 8, 257),  # more experts than threads of a usual block
    _odd(1000, 4, 1025),
    _odd(1023, 10, 512, 256),
    _odd(2049, 2, 8),
    _odd(4099, 1, 64),
    _odd(40, 64, 300),
    _odd(5, 2, 4099),  # more experts than one block scans
)


def routed(ids: Callable[[Draw], Tensor]) -> Callable[[Draw], dict[str, Tensor]]:
    """Ids of a given routing."""
    return lambda draw: {"topk_ids": ids(draw)}


def descending(draw: Draw) -> dict[str, Tensor]:
    """Ids from the last expert to the first: indices that ascend only where an expert repeats."""
    tokens, top_k, experts = (draw.dims[name] for name in ("token_count", "top_k", "num_experts"))
    ids = experts - 1 - torch.arange(tokens * top_k, device=draw.device) * experts // max(1, tokens * top_k)
    return {"topk_ids": ids.view(tokens, top_k).to(torch.int32)}


# Directed inputs by the gate that uses them.
PROBES = {
    "sensitivity": {
        "zipf": routed(routing.zipf),
        "one_expert": routed(routing.one_expert),
        "few_experts": routed(routing.few_experts),
        "repeated": routed(routing.repeated),
        "descending": descending,
    },
}
