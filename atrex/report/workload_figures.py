"""Figures of a benchmark besides its scores: fast_p, who did the work, and what a point of S has cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from atrex.fallback.records import Outcome as Origin
from atrex.records import Record
from atrex.score import CaseScore

THRESHOLDS = (1, 2)
POINT = 0.01  # of S


class FastShare(Record):
    """Share of the cases, and of their weight, that are accepted and over `p` times as fast as eager."""

    p: int
    cases: float
    weight: float


def fast_shares(scores: Sequence[CaseScore]) -> tuple[FastShare, ...] | None:
    """fast_p for each threshold; None where nothing was measured beside eager.

    The measure of KernelBench (Ouyang et al. 2025, arXiv 2502.10517), taken over cases instead of tasks:
    right and over p times as fast as eager PyTorch, among all. A case that was not measured beside eager is
    not fast. Where nothing at all was measured that is 0, as S is: what was rejected is not unknown.
    """
    paired = any(one.result and one.result.vs_eager for one in scores)
    if not scores or (not paired and any(one.standing == "measured" for one in scores)):
        return None
    return tuple(_fast_share(scores, p) for p in THRESHOLDS)


def _fast_share(scores: Sequence[CaseScore], p: int) -> FastShare:
    fast = [one.case.weight for one in scores if _speedup(one) > p]
    weight = math.fsum(one.case.weight for one in scores)
    return FastShare(p=p, cases=len(fast) / len(scores), weight=math.fsum(fast) / weight if weight else 0.0)


def _speedup(one: CaseScore) -> float:
    """The paired speed-up over eager; 0 where there is none. A rejected result cannot have one."""
    return one.result.vs_eager.median if one.result and one.result.vs_eager else 0.0


def fallback_shares(weights: Iterable[tuple[float, Origin | None]]) -> dict[Origin, float]:
    """Share of all weight by verdict of the hunt, of (weight, verdict) pairs an operator, the best first.

    An operator without a verdict (None) has its part in the whole and in no share.
    """
    pairs = list(weights)
    whole = math.fsum(weight for weight, _ in pairs) or 1.0
    held = {verdict for _, verdict in pairs}
    return {
        verdict: math.fsum(weight for weight, found in pairs if found is verdict) / whole
        for verdict in Origin
        if verdict in held
    }


def per_point(amount: float | None, S: float) -> float | None:
    """What one point (0.01 of S) has cost; None if the amount is unknown, or no point was made."""
    return None if amount is None or S <= 0 else amount * POINT / S
