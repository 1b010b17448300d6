"""The report of `atrex bench`: one agent or baseline over a workload, as one record.

Like `RunReport` it stores facts; every score is derived from them, so that no file can contradict its rows.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, computed_field, model_serializer, model_validator

from atrex.fallback.records import Outcome as Origin
from atrex.records import Device, Phase, Provenance, Ratio, Record
from atrex.report import RunReport, load_report, read_report
from atrex.report.workload_figures import FastShare, fallback_shares, fast_shares, per_point
from atrex.score import (
    CaseScore,
    Saving,
    WorkloadScore,
    fleet_saving,
    geometric_mean,
    score_workload,
    without,
)
from atrex.spending import Spending

KIND = "workload"
Scale = Literal["full", "small"]
Outcome = Literal["baseline", "accepted", "rejected", "undecided", "absent"]
WORKLOAD_HEADLINE = (
    "kind", "agent", "device", "workload", "scale", "S", "A", "phases", "coverage", "harmonic",
    "harmonic_measured", "measured", "fast_p", "fallbacks", "spent", "tokens_per_point", "dollars_per_point",
    "savings", "operators", "run", "seconds",
)  # fmt: skip
DERIVED = (
    "S", "A", "phases", "coverage", "harmonic", "harmonic_measured", "measured", "fast_p", "fallbacks",
    "tokens_per_point", "dollars_per_point", "savings", "operators",
)  # fmt: skip


class Entrant(Record):
    """What ran for one operator, and how it stands.

    `baseline`: PyTorch's own, which no gate has to accept. `undecided`: the harness could not judge.
    `absent`: there is nothing to run, as `note` says.
    """

    operator: str
    outcome: Outcome
    candidate: str = ""
    note: str = ""
    fallback: Origin | Literal[""] = ""  # what the hunt for PyTorch fallbacks says of its file; "": no file
    spent: Spending | None = None  # on models, for this operator


class OperatorRow(Record):
    """One operator's line in the weighted table, derived from its cases."""

    op: str
    outcome: Outcome | None  # None: not reached
    weight: float
    cases: int
    measured: int
    S: float
    A: float | None
    lost: float  # Σ (1 - S)·w over its cases
    vs_eager: Ratio | None  # geometric mean over the cases that were measured beside eager
    note: str
    fallback: Origin | None = None
    spent: Spending | None = None


class WorkloadReport(Record):
    """Everything a reader of one benchmark wants to see."""

    schema_version: Literal[1] = 1
    kind: Literal["workload"] = "workload"
    agent: str
    device: Device
    workload: str
    scale: Scale = "full"
    phase: Phase | None = None
    cases_per_operator: int | None = None  # at most so many, which stand for all of the operator's weight
    run: str
    seconds: float
    cases: tuple[CaseScore, ...] = ()
    entrants: tuple[Entrant, ...] = ()
    spent: Spending | None = Field(default=None, description="on models, for the whole benchmark")
    reasons: dict[str, str] = Field(default={}, description="why a case has no measurement, by case id")
    accelerators: tuple[str, ...] = Field(default=(), description="names of this machine in workloads")
    provenance: Provenance | None = None
    command: str = ""
    notes: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _drop_derived(cls, data: Any) -> Any:
        return without(data, *DERIVED)

    @model_serializer(mode="wrap")
    def _headline_first(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """`--json` and report.json: the keys that are promised to programs come first."""
        data: dict[str, Any] = dump(self)
        return {key: data[key] for key in WORKLOAD_HEADLINE if key in data} | data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = {one.case.operator for one in self.cases}
        if strangers := [one.operator for one in self.entrants if one.operator not in known]:
            raise ValueError(f"an entrant for {strangers[0]}, of which there is no case")
        refused = {one.operator for one in self.entrants if one.outcome not in ("baseline", "accepted")}
        for one in self.cases:
            if one.standing == "measured" and one.case.operator in refused:
                raise ValueError(f"{one.case.id} is measured, but what ran for it is not accepted")
        return self

    @cached_property
    def score(self) -> WorkloadScore:
        """The weighted aggregate."""
        return score_workload(self.cases)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def S(self) -> float:
        """Σ w·S(op) / Σ w over operators."""
        return self.score.S

    @computed_field  # type: ignore[prop-decorator]
    @property
    def A(self) -> float | None:
        """The same against the attainable bound; None where the machine is not calibrated."""
        return self.score.A

    @computed_field  # type: ignore[prop-decorator]
    @property
    def phases(self) -> dict[Phase, float]:
        """S of the cases of each phase."""
        return self.score.phases

    @computed_field  # type: ignore[prop-decorator]
    @property
    def coverage(self) -> float:
        """Share of the weight in operators whose every case is accepted."""
        return self.score.coverage

    @computed_field  # type: ignore[prop-decorator]
    @property
    def harmonic(self) -> float:
        """Σ w / Σ (w/S) over all cases."""
        return self.score.harmonic

    @computed_field  # type: ignore[prop-decorator]
    @property
    def harmonic_measured(self) -> float | None:
        """The same over the measured cases alone."""
        return self.score.harmonic_measured

    @computed_field  # type: ignore[prop-decorator]
    @property
    def measured(self) -> float:
        """Share of the weight in measured cases."""
        return self.score.measured

    @computed_field  # type: ignore[prop-decorator]
    @property
    def fast_p(self) -> tuple[FastShare, ...] | None:
        """Shares of cases and weight over p times as fast as eager; None: nothing was measured beside it."""
        return fast_shares(self.cases)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def fallbacks(self) -> dict[Origin, float]:
        """Share of the weight in operators whose file has each verdict; empty where no file has one."""
        return fallback_shares((row.weight, row.fallback) for row in self.operators)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def tokens_per_point(self) -> float | None:
        """Tokens for each 0.01 of S; None if no model was asked, or S is 0."""
        return per_point(self.spent.tokens if self.spent else None, self.S)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def dollars_per_point(self) -> float | None:
        """The same in dollars; None also where a price is unknown."""
        return per_point(self.spent.dollars if self.spent else None, self.S)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def savings(self) -> tuple[Saving, ...]:
        """Fleet time saved, by each name of this accelerator under which a production latency is known."""
        if self.scale == "small":
            return ()  # production never ran these shapes
        found = (fleet_saving(self.cases, accelerator) for accelerator in self.accelerators)
        return tuple(saving for saving in found if saving)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def operators(self) -> tuple[OperatorRow, ...]:
        """One row an operator, the heaviest first."""
        entrants = {one.operator: one for one in self.entrants}
        scores = self.score.operators
        names = sorted(scores, key=lambda name: (-scores[name].weight, name))
        return tuple(self._row(name, entrants.get(name)) for name in names)

    def _row(self, operator: str, entrant: Entrant | None) -> OperatorRow:
        cases = [one for one in self.cases if one.case.operator == operator]
        total = self.score.operators[operator]
        ratios = (one.result.vs_eager for one in cases if one.result and one.result.vs_eager)
        return OperatorRow(
            op=operator,
            outcome=entrant.outcome if entrant else None,
            weight=total.weight,
            cases=total.cases,
            measured=sum(one.standing == "measured" for one in cases),
            S=total.S,
            A=total.A,
            lost=sum(one.lost for one in cases),
            vs_eager=geometric_mean(ratios),
            note=entrant.note if entrant else "",
            fallback=(entrant.fallback or None) if entrant else None,
            spent=entrant.spent if entrant else None,
        )


def load_any_report(path: Path) -> RunReport | WorkloadReport:
    """The report.json of an optimisation or of a benchmark, by its `kind`. Raises UsageError."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return load_report(path)  # which says what is wrong with it
    if isinstance(data, dict) and data.get("kind") == KIND:
        return read_report(path, WorkloadReport)
    return load_report(path)
