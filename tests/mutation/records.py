"""What a campaign finds, as records that can be written and read again."""

from __future__ import annotations

from typing import Literal

from atrex.contract import Family
from atrex.protocol import InputSpec
from atrex.records import Record

# clear, marginal: witnessed, beyond the bound by the factor CLEAR or by less. unwitnessed: equivalent, or the
# search was blind. What does not run on production inputs is no mutant.
Standing = Literal["clear", "marginal", "unwitnessed", "does not run", "not run"]


class WitnessRecord(Record):
    """A legal call on which a mutant is wrong and its honest kernel right."""

    spec: InputSpec
    what: str
    ratio: float


class Result(Record):
    """What became of one mutant."""

    id: str
    operator: str
    family: Family  # the class of the operator, as its problem states it
    kernel: str
    path: str
    fault: str
    line: int
    note: str
    status: Standing
    why: str = ""
    witness: WitnessRecord | None = None
    allclose: str = ""  # accepts or rejects
    killed: bool = False
    gate: str = ""
    level: str = ""
    reason: str = ""
    undecided: str = ""
    seconds: float = 0.0

    @property
    def survived(self) -> bool:
        """A provably wrong kernel that no gate failed: a hole in the gates."""
        return self.status == "clear" and not self.killed

    @property
    def disturbed(self) -> bool:
        """Whether the machine failed and not the mutant; alone it may be judged."""
        return self.status == "not run" and self.why.startswith("harness: ")

    @property
    def summary(self) -> str:
        """One line for a terminal."""
        said = f"{self.gate} ({self.level}): {self.reason[:70]}" if self.killed else "SURVIVES"
        seen = (
            f"{self.witness.what[:70]}; allclose {self.allclose}; {said}" if self.witness else self.why[:120]
        )
        return f"{self.status:12} {self.id} [{self.note[:60]}] {seen} {self.seconds:.0f} s"
