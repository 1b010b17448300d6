"""What a run may spend on asking for kernels. Trying what is there already costs time alone: see `Budget`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from atrex.spending import Spending


def no_limit() -> float:
    """Seconds that are left where nothing bounds them."""
    return math.inf


@dataclass(frozen=True, slots=True)
class Funds:
    """Tokens and dollars over all sessions of a run (None: no limit), and the seconds that are left of it."""

    tokens: int | None = None
    dollars: float | None = None
    left: Callable[[], float] = no_limit

    def allow(self, spent: Spending) -> bool:
        """True iff one more question of average length may be asked. An unknown cost may be any."""
        if self.tokens is not None and spent.tokens >= self.tokens:
            return False
        if self.dollars is not None and (spent.dollars is None or spent.dollars >= self.dollars):
            return False
        average = spent.seconds / spent.calls if spent.calls else 0.0
        return self.left() > average
