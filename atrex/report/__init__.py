"""The report of a run: one record, rendered by pure functions into terminal, markdown and HTML.

Its JSON form is the record itself: `report.model_dump_json(indent=2)`, which `load_report` reads back.

Only facts are stored; scores, speed-ups, verdicts and acceptance are derived from them, so that no report
can contradict its own rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    computed_field,
    model_serializer,
    model_validator,
)

from atrex.errors import UsageError
from atrex.records import Device, Dsl, Judgement, Provenance, Ratio, Record, Status
from atrex.score import CaseScore, geometric_mean, score, without
from atrex.spending import Spending

HEADLINE = (
    "op", "device", "dsl", "accepted", "kernel", "candidates_tried", "candidates_accepted",
    "speedup_vs_eager", "speedup_vs_compile", "S", "A", "verdicts", "run", "seconds",
)  # fmt: skip
Report = TypeVar("Report", bound=Record)
DERIVED = ("accepted", "speedup_vs_eager", "speedup_vs_compile", "S", "A", "verdicts")


class Step(Record):
    """One step of a search: what was tried where, what it promised, and what it brought."""

    step: int
    move: str
    outcome: str  # promoted, no gain, wrong, …
    bucket: str = ""
    predicted: float | None = None  # speed-up over the incumbent, 1.0 = none
    realised: Ratio | None = None  # the same, paired and measured
    candidate: str = ""
    note: str = ""


class DropoutEpisode(Record):
    """Steps during which a share of the search context was hidden."""

    first: int
    last: int
    share: float
    hidden: tuple[str, ...] = ()
    outcome: str = ""  # adopted, restored, …


class RunReport(Record):
    """Everything a reader of one run wants to see."""

    schema_version: Literal[1] = 1
    op: str
    device: Device
    dsl: Dsl
    run: str
    kernel: str | None  # path of the best kernel; None: none was accepted
    candidates_tried: int
    candidates_accepted: int
    seconds: float
    judgement: Judgement | None = None  # on the best kernel
    doubt: str = Field(default="", description="why a kernel that the gates accepted is not believed")
    cases: tuple[CaseScore, ...] = ()
    agent: str = ""  # who proposed, with its model
    spent: Spending | None = None  # on models
    history: tuple[Step, ...] = ()
    dropout: tuple[DropoutEpisode, ...] = ()
    provenance: Provenance | None = None
    command: str = ""
    notes: tuple[str, ...] = Field(default=(), description="warnings and remarks, shown as they are")

    @model_validator(mode="before")
    @classmethod
    def _drop_derived(cls, data: Any) -> Any:
        return without(data, *DERIVED)

    @model_serializer(mode="wrap")
    def _headline_first(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """`--json` and report.json: the keys that are promised to programs come first."""
        data: dict[str, Any] = dump(self)
        return {key: data[key] for key in HEADLINE if key in data} | data

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(one.case.operator != self.op for one in self.cases):
            raise ValueError(f"a case of another operator than {self.op}")
        if self.judgement and self.judgement.operator != self.op:
            raise ValueError(f"a judgement on another operator than {self.op}")
        if not self.accepted and any(one.standing == "measured" for one in self.cases):
            raise ValueError("a rejected kernel has no measured case")
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def accepted(self) -> bool:
        """The best kernel passed every required gate, and nothing spoke against it since."""
        return self.judgement is not None and self.judgement.accepted and not self.doubt

    @computed_field  # type: ignore[prop-decorator]
    @property
    def speedup_vs_eager(self) -> Ratio | None:
        """Geometric mean over the cases measured against eager PyTorch."""
        return geometric_mean(r.vs_eager for one in self.cases if (r := one.result) and r.vs_eager)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def speedup_vs_compile(self) -> Ratio | None:
        """Geometric mean over the cases measured against torch.compile."""
        return geometric_mean(r.vs_compile for one in self.cases if (r := one.result) and r.vs_compile)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def S(self) -> float:
        """Mean of sol / median over all cases."""
        return score(self.cases).S

    @computed_field  # type: ignore[prop-decorator]
    @property
    def A(self) -> float | None:
        """Mean of attainable / median over all cases; None where the machine is not calibrated."""
        return score(self.cases).A

    @computed_field  # type: ignore[prop-decorator]
    @property
    def verdicts(self) -> dict[str, Status]:
        """Status by gate."""
        return {v.gate: v.status for v in self.judgement.verdicts} if self.judgement else {}


def load_report(path: Path) -> RunReport:
    """Read the report.json of one operator. Raises UsageError naming the file and the field that is wrong."""
    return read_report(path, RunReport)


def read_report(path: Path, form: type[Report]) -> Report:
    """Read a report.json of a known form. Raises UsageError naming the file and the field that is wrong."""
    try:
        return form.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(
            f"{path}: the run has no report yet; let it end, or continue it with --resume"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot read the report ({error.strerror})") from None
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or "(top level)"
        raise UsageError(f"{path}: field {field}: {first['msg']}") from None
