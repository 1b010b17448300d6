"""Routing of tokens to experts, shared by the MoE operators: draws, and what to expect of them.

ids: [T, k] int32 in [0, E). They may repeat within a token, as independent uniform draws do.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atrex.problem import Draw

_ZIPF_EXPONENT = 1.2  # measured routers are about this uneven on text of one domain


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["token_count"], draw.dims["top_k"]


def uniform(draw: Draw) -> Tensor:
    """Every choice equally likely and independent: what production inputs are drawn from."""
    return draw.integers(_extent(draw), draw.dims["num_experts"])


def zipf(draw: Draw) -> Tensor:
    """The r-th most popular expert is chosen with probability ~ r^-1.2; popularity is in random order."""
    experts = draw.dims["num_experts"]
    rank = torch.arange(1, experts + 1, dtype=torch.float64, device=draw.device)
    share = rank.pow(-_ZIPF_EXPONENT).cumsum(0)
    place = torch.searchsorted(share / share[-1], draw.uniform(_extent(draw)).double())
    return draw.permutation(experts)[place.clamp_(max=experts - 1)].to(torch.int32)


def one_expert(draw: Draw) -> Tensor:
    """All tokens on one expert, neither the first nor the last where there are others."""
    return torch.full(_extent(draw), draw.dims["num_experts"] // 2, dtype=torch.int32, device=draw.device)


def repeated(draw: Draw) -> Tensor:
    """Every token names one expert of its own k times: the weights of repeats must add."""
    tokens, top_k = _extent(draw)
    return draw.integers((tokens, 1), draw.dims["num_experts"]).repeat(1, top_k)


def few_experts(draw: Draw) -> Tensor:
    """Only the first and the last expert have tokens, and the last has one token in nine."""
    last = draw.uniform(_extent(draw)) < 1 / 9
    return last.to(torch.int32) * (draw.dims["num_experts"] - 1)


def expected_hits(experts: int, pairs: int) -> int:
    """Experts that at least one of `pairs` uniform independent choices names, on average, rounded."""
    return round(experts * _hit_share(experts, pairs))


def expected_pairs(tokens: int, top_k: int, experts: int) -> int:
    """Different (token, expert) pairs under uniform routing, on average, rounded.

    A token that names an expert twice needs its output once, under the sum of the two weights.
    """
    return round(tokens * experts * _hit_share(experts, top_k))


def _hit_share(experts: int, choices: int) -> float:
    """1 - (1 - 1/E)^n, without cancellation for large E."""
    if experts == 1 or choices == 0:
        return float(choices > 0)
    return -math.expm1(choices * math.log1p(-1 / experts))
