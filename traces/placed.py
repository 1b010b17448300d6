"""An entry of a profile with what it is: one of our operators at a case, or a named class outside them.

`traces.classify` makes them by `rules.yaml`; weights, reports and `atrex trace show` work on them. Nothing is
dropped: the placed entries of a profile are all of its entries, and what no rule knows has the target
`unplaced`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from atrex.records import InitValue, Record
from traces.profile import Entry
from traces.workload import Value

UNPLACED = "unplaced"

PlacedPhase = Literal["prefill", "decode", "unknown"]


class Placed(Record):
    """One entry of one profile, and what the rules say of it."""

    digest: str  # of the profile
    entry: Entry
    target: str  # an operator of bench/, or a class outside: dense_gemm, collective, copy, sampling, …
    ours: bool  # whether the target is an operator of bench/
    rule: str = ""  # the rule that placed it; empty if none did
    phase: PlacedPhase = "unknown"
    phase_from: str = ""  # what told the phase: "step annotation", "query lengths"; empty if nothing did
    # Arguments of the problem at this case; empty where they are not known.
    init: dict[str, InitValue] = Field(default_factory=dict)
    input: dict[str, Value] = Field(default_factory=dict)
    why: str = ""  # why there is no case, in a few words
    # Calls of the operator that the entry stands for: 0 for the further kernels of a call of several.
    calls: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Placed:
        if self.ours and not self.input and not self.why:
            raise ValueError(f"{self.target}: give a case, or why there is none")
        if (self.target == UNPLACED) != (self.rule == ""):
            raise ValueError("a rule places an entry, and only a rule does")
        return self

    @property
    def has_case(self) -> bool:
        """Whether the operator's shape is known."""
        return bool(self.input)
