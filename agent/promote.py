"""When a change counts: pure decisions on paired measurements.

A bucket is promoted when the interval of the geometric-mean ratio over its cases excludes "no better", and
no case of it regresses beyond its noise: no case's own interval lies entirely below 1 - margin.

A search tries many configurations, so some win by chance. A first win therefore only nominates; a second,
independent comparison must say the same. At 95 % intervals a configuration that is no better is nominated
with probability 0.025 and passes both with 0.025 ** 2 = 0.0006, so that 1000 such tries adopt 0.6 of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field

from agent.lab import Comparison
from atrex.records import Judgement, Ratio, Record, Status

Judged = Literal["accepted", "wrong", "unjudged"]


class PromotionPolicy(Record):
    """What a win must show."""

    margin: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Slowdown of a single case that is forgiven even when it is certain."""
    least_gain: Annotated[float, Field(ge=0)] = 0.0
    """Smallest relative gain worth adopting; the interval must lie above 1 + least_gain."""
    patience: Annotated[int, Field(ge=0)] = 3
    """Moves in a row that beat nothing timed before, after which the best of what was timed goes before the
    gates; 0: every win does, at once."""


def geometric_mean(ratios: Sequence[Ratio], weights: Sequence[float] | None = None) -> Ratio:
    """Weighted geometric mean of paired ratios, with an interval of the same confidence.

    On the log scale the mean's error is the weighted mean of the cases' errors. These are independent
    (pairing removes what two cases share), so half-widths add in squares, each side on its own. Weights
    that are absent or all zero count as equal. Raises ValueError for no ratios or mixed confidences.
    """
    if not ratios or len({ratio.confidence for ratio in ratios}) > 1:
        raise ValueError("a geometric mean needs at least one ratio, all of the same confidence")
    given = list(weights or ())
    shares = given if sum(given) > 0 else [1.0] * len(ratios)
    total = sum(shares)
    logs = [(math.log(r.low), math.log(r.median), math.log(r.high)) for r in ratios]
    centre = sum(w * mid for w, (_, mid, _) in zip(shares, logs, strict=True)) / total
    below = math.hypot(*(w * (mid - low) for w, (low, mid, _) in zip(shares, logs, strict=True))) / total
    above = math.hypot(*(w * (high - mid) for w, (_, mid, high) in zip(shares, logs, strict=True))) / total
    return Ratio(
        median=math.exp(centre),
        low=math.exp(centre - below),
        high=math.exp(centre + above),
        n=sum(ratio.n for ratio in ratios),
        confidence=ratios[0].confidence,
    )


def gain(comparisons: Mapping[str, Comparison], weights: Mapping[str, float] | None = None) -> Ratio:
    """The geometric-mean speed-up over the compared cases, weighted by case id if weights are given."""
    ratios = [comparison.ratio for comparison in comparisons.values()]
    return geometric_mean(ratios, [weights[case] for case in comparisons] if weights else None)


def regressed(comparisons: Mapping[str, Comparison], policy: PromotionPolicy) -> tuple[str, ...]:
    """Ids of the cases that are slower beyond their noise and the margin."""
    limit = 1 - policy.margin
    return tuple(case for case, comparison in comparisons.items() if comparison.ratio.high < limit)


def better(
    comparisons: Mapping[str, Comparison],
    policy: PromotionPolicy,
    weights: Mapping[str, float] | None = None,
) -> bool:
    """True iff these cases got faster together and none of them regressed."""
    enough = gain(comparisons, weights).low > 1 + policy.least_gain
    return enough and not regressed(comparisons, policy)


def better_start(
    comparisons: Mapping[str, Comparison], policy: PromotionPolicy, weights: Mapping[str, float]
) -> bool:
    """True iff another kernel is the better place to start: faster by weight over all cases.

    For whole reference kernels only, before anything has been tuned. No table can take the better half of
    two files, so here one case may lose for the others, and the search then works on the loser's bucket.
    """
    return gain(comparisons, weights).low > 1 + policy.least_gain


def judged(judgement: Judgement) -> Judged:
    """Whether a candidate passed, is wrong, or could not be judged (which teaches nothing about it)."""
    if judgement.accepted:
        return "accepted"
    wrong = any(
        v.status is Status.FAIL
        or (v.status is Status.UNSUPPORTED and v.gate not in judgement.may_be_unsupported)
        for v in judgement.verdicts
    )
    return "wrong" if wrong else "unjudged"


def reason(judgement: Judgement) -> str:
    """Why a candidate was not accepted, in one line."""
    bad = [v for v in judgement.verdicts if v.status is not Status.PASS]
    bad.sort(key=lambda v: v.status is not Status.FAIL)
    if not bad:
        spoken = {v.gate for v in judgement.verdicts}
        return f"no verdict of {', '.join(g for g in judgement.required if g not in spoken)}"
    return f"{bad[0].gate}: {bad[0].reason}"


def witnesses(judgement: Judgement) -> frozenset[str]:
    """Cases, or labels of shapes, in which a failing gate saw the failure."""
    failed = (v for v in judgement.verdicts if v.status is Status.FAIL and v.witness)
    return frozenset(v.witness.case for v in failed if v.witness)
