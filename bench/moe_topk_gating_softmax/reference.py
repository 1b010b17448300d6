"""moe_topk_gating_softmax: inputs, eager reference, fp64 oracle, check of ids, directed probes and cost.

Shapes: gating_output [T, E] fp32; topk_weights [T, k] fp32, descending, and topk_ids [T, k] int32. Formula:
the router of Shazeer et al., "Outrageously Large Neural Networks" (arXiv:1701.06538) without noise; groups
as in DeepSeek-V2's device-limited routing (arXiv:2405.04434, section 2.2.2): scores outside of the
`topk_group` groups with the largest maximum become zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from atrex.problem import Draw, Expected, Init, Input, Precision
from atrex.records import Cost, Shape

_ORACLE_CHUNK = 1 << 24  # elements of fp64 at a time: 128 MiB, and a few of them live
_U = 2.0**-24
_STEPS = 8  # the contract's rounding_steps
_TINY = 2.0**-140  # of scores that fp32 hardly holds


def extents(init: Init, input: Input) -> dict[str, Any]:
    """The case's extents. Raises ValueError where groups or top_k do not fit the experts."""
    experts, groups, kept = input["num_experts"], init["num_expert_groups"], init["topk_group"]
    eligible = experts
    if groups:
        if experts % groups:
            raise ValueError(f"{groups} groups do not divide {experts} experts")
        if not 1 <= kept <= groups:
            raise ValueError(f"topk_group is {kept}; legal is 1 to num_expert_groups = {groups}")
        eligible = experts // groups * kept
    if init["top_k"] > eligible:
        raise ValueError(f"top_k is {init['top_k']}; only {eligible} experts are eligible")
    return {**input}


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """top_k, which the case states as a constructor argument only."""
    return {"top_k": int(init["top_k"])}


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like logits: N(0, 1)."""
    return {"gating_output": draw.normal(_extent(draw), 1.0, torch.float32)}


def _extent(draw: Draw) -> tuple[int, int]:
    return draw.dims["token_count"], draw.dims["num_experts"]


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it."""
    scores = inputs["gating_output"].softmax(-1)
    if groups := init["num_expert_groups"]:
        grouped = scores.unflatten(-1, (groups, -1))
        best = grouped.amax(-1).topk(init["topk_group"], dim=-1, sorted=False).indices
        keep = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=scores.device).scatter_(1, best, True)
        scores = grouped.masked_fill(~keep.unsqueeze(-1), 0.0).flatten(1)
    weights, ids = scores.topk(init["top_k"], dim=-1)
    return {"topk_weights": weights, "topk_ids": ids.to(torch.int32)}


def _scores(logits: Tensor) -> Tensor:
    """Softmax in fp64."""
    wide = logits.double()
    powers = torch.exp(wide - wide.amax(-1, keepdim=True))
    return powers / powers.sum(-1, keepdim=True)


def _condition(logits: Tensor) -> Tensor:
    """One plus the largest magnitude of a row's logits: an error u of the exponent's argument grows by it."""
    return 1 + logits.double().abs().amax(-1, keepdim=True)


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The k largest scores in fp64; which ids these are is left to `check`.

    All terms of the sum are positive, so its error is relative to the score; exp multiplies the error of
    its argument by the argument, which the largest logit limits. The j-th largest of perturbed scores is no
    farther from the j-th largest than the largest perturbation, so ties change nothing here.
    """
    logits, top_k = inputs["gating_output"], init["top_k"]
    value = torch.empty((logits.shape[0], top_k), dtype=torch.float64, device=logits.device)
    terms = torch.empty_like(value)
    step = max(1, _ORACLE_CHUNK // logits.shape[1])
    for start in range(0, logits.shape[0], step):
        block = logits[start : start + step]
        scores = _scores(block)
        if groups := init["num_expert_groups"]:
            best = scores.view(len(block), groups, -1).amax(-1)
            kept = best.argsort(-1, descending=True).argsort(-1) < init["topk_group"]
            scores = scores * kept.repeat_interleave(scores.shape[1] // groups, 1)
        value[start : start + step] = scores.sort(-1, descending=True).values[:, :top_k]
        terms[start : start + step] = value[start : start + step] * _condition(block)
    return {"topk_weights": Expected(value, terms)}


def check(init: Init, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> str:
    """What is wrong with ids, weights or their order; empty if nothing is.

    Scores that compare wrong by no more than rounding allows are ties. The sum is common to a row and
    cannot change the order, so only the exponential and the quotient count there; a weight may also carry
    the sum's error.
    """
    logits = inputs["gating_output"]
    step = max(1, _ORACLE_CHUNK // logits.shape[1])
    for start in range(0, logits.shape[0], step):
        rows = slice(start, start + step)
        if said := _check(init, logits[rows], outputs["topk_weights"][rows], outputs["topk_ids"][rows]):
            row, what = said
            return f"row {start + row}: {what}"
    return ""


def _check(init: Init, logits: Tensor, weights: Tensor, ids: Tensor) -> tuple[int, str] | None:
    """The first bad row of a block and what is wrong with it."""
    experts, chosen = logits.shape[1], ids.long()
    outside = (chosen < 0) | (chosen >= experts)
    ascending = chosen.sort(-1).values
    if found := _first(outside.any(-1), f"an id outside of 0 to {experts - 1}"):
        return found
    if found := _first((ascending.diff(dim=-1) == 0).any(-1), "an id twice"):
        return found
    condition = _condition(logits)
    unit = _U * _STEPS * condition  # of a score, as far as order is concerned
    scores = _eligible(init, _scores(logits), chosen, unit)
    own = scores.gather(1, chosen)
    best = scores.topk(init["top_k"], dim=-1).values
    if found := _first(
        ((own - best).abs() > unit * (own + best) + _TINY).any(-1),
        "ids are not those of the largest scores in order",
    ):
        return found
    growth = Precision("fp32", experts, _STEPS + 1).growth * condition
    wide = weights.double()
    # Not `>`: a NaN is wrong, too.
    if found := _first(
        ~((wide - own).abs() <= growth * own + _TINY).all(-1), "weights are not the scores of their ids"
    ):
        return found
    falling = wide[:, 1:] <= wide[:, :-1] * (1 + 2 * unit) + _TINY
    return _first(~falling.all(-1), "weights are not in descending order")


def _eligible(init: Init, scores: Tensor, chosen: Tensor, unit: Tensor) -> Tensor:
    """Scores with those outside of the kept groups zeroed.

    Where group maxima tie for the last places, the groups that the ids come from are kept before others.
    """
    groups = init["num_expert_groups"]
    if not groups:
        return scores
    size = scores.shape[1] // groups
    largest = scores.view(len(scores), groups, size).amax(-1)
    last = largest.topk(init["topk_group"], dim=-1).values[:, -1:]
    sure = largest > last * (1 + 2 * unit) + _TINY
    possible = largest >= last * (1 - 2 * unit) - _TINY
    used = torch.zeros_like(sure).scatter_(1, chosen // size, True)
    preference = 4 * sure.int() + 2 * (possible & used).int() + possible.int()
    order = preference.argsort(dim=-1, descending=True, stable=True)
    kept = torch.zeros_like(sure).scatter_(1, order[:, : init["topk_group"]], True)
    return scores * kept.repeat_interleave(size, 1)


def _first(bad: Tensor, what: str) -> tuple[int, str] | None:
    return (int(bad.int().argmax()), what) if bool(bad.any()) else None


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes: per score a difference, an exp and a quotient, and E - 1 additions.

    Comparisons are not counted.
    """
    tokens, experts, top_k = (shape.dims[name] for name in ("token_count", "num_experts", "top_k"))
    return Cost(
        flops={"fp32": float(tokens * (4 * experts - 1))},
        read_bytes=4 * tokens * experts,
        write_bytes=8 * tokens * top_k,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few tokens of as many experts."""
    return init, {**input, "token_count": min(input["token_count"], 37)}


def _odd(tokens: int, experts: int, top_k: int, groups: int = 0, kept: int = 0) -> tuple[Init, Input]:
    init = {"top_k": top_k, "num_expert_groups": groups, "topk_group": kept}
    return init, {"token_count": tokens, "num_experts": experts}


ODD = (
    _odd(1, 1, 1),
    _odd(0, 128, 8),  # no token
    _odd(2, 2, 2),
    _odd(3, 7, 7),  # all of a prime number of experts
    _odd(5, 31, 1),
    _odd(17, 33, 9),
    _odd(31, 60, 4),
    _odd(63, 160, 6),
    _odd(65, 129, 8),
    _odd(127, 257, 8),
    _odd(129, 72, 13),
    _odd(3, 1000, 16),
    _odd(2, 4096, 33),
    _odd(3, 200, 128),
    _odd(33, 256, 8, 8, 4),
    _odd(37, 160, 6, 8, 3),
    _odd(19, 64, 6, 1, 1),  # one group: as without
    _odd(7, 72, 8, 9, 1),  # exactly one group, all of it
    _odd(13, 64, 6, 64, 6),  # groups of one expert
    _odd(29, 120, 5, 6, 6),  # all groups kept
    _odd(11, 256, 8, 16, 2),
)

PATHS = (_odd(33, 256, 8, 8, 4),)  # groups, which no production case has


def _shuffled(draw: Draw) -> Tensor:
    """[T, E]: a random order of 0 to E - 1 in each row."""
    return draw.uniform(_extent(draw)).argsort(-1)


def _over_groups(draw: Draw, logits: Tensor) -> Tensor:
    """Logits plus a different multiple of 3 for each group of a row, so that no two group maxima tie."""
    groups = draw.init["num_expert_groups"]
    if not groups:
        return logits
    tokens, experts = _extent(draw)
    lift = draw.uniform((tokens, groups)).argsort(-1).float() * 3
    return logits + lift.repeat_interleave(experts // groups, 1)


def spread_logits(draw: Draw) -> dict[str, Tensor]:
    """N(0, 2): weights from nearly 1 to 1e-5."""
    return {"gating_output": draw.normal(_extent(draw), 2.0, torch.float32)}


def row_offsets(draw: Draw) -> dict[str, Tensor]:
    """Logits around -300 to 300: exp overflows or vanishes unless the row's maximum is taken off."""
    offset = draw.uniform((draw.dims["token_count"], 1)) * 600 - 300
    return {"gating_output": draw.normal(_extent(draw), 2.0, torch.float32) + offset}


def steps(draw: Draw) -> dict[str, Tensor]:
    """Evenly spaced logits in random order: no near tie, and the largest may be in any lane."""
    return {"gating_output": _shuffled(draw) * (8.0 / draw.dims["num_experts"]) - 4}


def ascending(draw: Draw) -> dict[str, Tensor]:
    """The last experts are the best: every candidate is replaced again and again."""
    tokens, experts = _extent(draw)
    return {
        "gating_output": torch.linspace(-2, 2, experts, device=draw.device).expand(tokens, -1).contiguous()
    }


def ties(draw: Draw) -> dict[str, Tensor]:
    """Multiples of 1/2 in a narrow range: most scores tie, also at the k-th place."""
    return {"gating_output": _over_groups(draw, draw.integers(_extent(draw), 6).float() / 2 - 1)}


def equal_rows(draw: Draw) -> dict[str, Tensor]:
    """All experts of a group alike: k different ids all the same."""
    return {"gating_output": _over_groups(draw, torch.full(_extent(draw), -0.75, device=draw.device))}


def tied_groups(draw: Draw) -> dict[str, Tensor]:
    """The same logits in every group, shuffled: all maxima tie, and weights do not hang on which are kept."""
    tokens, experts = _extent(draw)
    groups = draw.init["num_expert_groups"] or 1
    ranks = draw.uniform((tokens, groups, experts // groups)).argsort(-1).float()
    return {"gating_output": (ranks * (4.0 * groups / experts) - 2).flatten(1)}


def vanishing(draw: Draw) -> dict[str, Tensor]:
    """Few experts carry everything; the others' scores are zero, and ids among them still differ."""
    few = _shuffled(draw) < 3
    logits = draw.normal(_extent(draw), 1.0, torch.float32)
    return {"gating_output": torch.where(few, logits, -200.0)}


def fine_differences(draw: Draw) -> dict[str, Tensor]:
    """Logits 2^-13 apart in random order: equal in bf16 and fp16, and hardly apart in TF32."""
    logits = _shuffled(draw) * 2.0**-13
    return {"gating_output": _over_groups(draw, logits + 1)}


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """One logit of 0 at a different expert in each row among many of about -6.5.

    The others add about E / 665 to 1: in a running sum of 8 bits each of them vanishes.
    """
    tokens, experts = _extent(draw)
    logits = -6.5 - draw.uniform((tokens, experts)) * 0.5
    place = torch.arange(tokens, device=draw.device) * 5 % experts
    return {"gating_output": logits.scatter_(1, place[:, None], 0.0)}


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation},
    "sensitivity": {
        "spread_logits": spread_logits,
        "row_offsets": row_offsets,
        "steps": steps,
        "ascending": ascending,
        "ties": ties,
        "equal_rows": equal_rows,
        "tied_groups": tied_groups,
        "vanishing": vanishing,
        "fine_differences": fine_differences,
    },
}
