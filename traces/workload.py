"""A workload: which operators matter, how much, and at which shapes.

    workload = load_workload("atrex-bench", operators=["rms_norm"])
    for case in workload.cases("rms_norm"): ...

A file is YAML with one case a line:

    name: my-fleet
    provenance: where the shapes and weights come from
    operators:
      rms_norm:
        weight: 0.027508
        phases: [prefill, decode]
        cases:
          - {shape: 0, init: {eps: 1.0e-6}, input: {token_count: 2500, hidden_size: 1024}, seen_in: vLLM}

A case may give its `share` of the operator's weight, `share: 0.7`; then all of the operator's do, and have
the weight in proportion. Without shares they have it equally.

A name stands for a directory of such files under `traces/workloads/`, one an operator.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from math import inf, isfinite, prod
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, StringConstraints, model_validator

from atrex import strict_yaml
from atrex.errors import UsageError
from atrex.records import Case, InitValue, Phase, Record, Scalar

WORKLOADS = Path(__file__).resolve().parent / "workloads"
DECODE_TOKENS = 64  # an operator of both phases counts as decode up to this many tokens or rows

Text = Annotated[str, StringConstraints(min_length=1)]
Identifier = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=0)]
Run = Annotated[list[int], Field(min_length=2, max_length=2)]  # [length, repeat]
Value = Scalar | list[int] | list[Run]

# Inputs that count tokens or rows, over all operators of Atrex-Bench; the first one present decides.
_ROWS = ("token_count", "num_tokens", "total_tokens", "rows", "m")


class WorkloadCase(Record):
    """One line of a workload: a shape, and what production knows of it."""

    shape: Count  # index of the shape, from which the case takes its id
    init: dict[Identifier, InitValue] = Field(default_factory=dict)
    input: dict[Identifier, Value]
    share: Positive | None = None  # of the operator's weight, beside those of its other cases
    phase: Phase | None = None  # only where the number of tokens does not tell
    seen_in: str = ""
    call_count: Count | None = None
    # Microseconds of one call, by accelerator.
    production_us: dict[str, Positive] = Field(default_factory=dict)

    @property
    def rows(self) -> int | None:
        """Tokens or rows of the shape; None if the inputs do not say.

        A plain count, else the sum of the run-length coded `seq_lens`, else every dimension of `shape`
        but the last. (For a `shape` of [tokens, heads, head size] that counts heads too: give a phase.)
        """
        for name in _ROWS:
            if isinstance(count := self.input.get(name), int):
                return count
        if isinstance(lengths := self.input.get("seq_lens"), list):
            return sum(run if isinstance(run, int) else run[0] * run[1] for run in lengths)
        if isinstance(dims := self.input.get("shape"), list):
            return prod(dim for dim in dims[:-1] if isinstance(dim, int))
        return None


class OperatorWorkload(Record):
    """An operator's share of the fleet's device time, and its shapes."""

    weight: Positive
    phases: Annotated[tuple[Phase, ...], Field(min_length=1, max_length=2)]
    cases: Annotated[tuple[WorkloadCase, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> OperatorWorkload:
        shapes = [case.shape for case in self.cases]
        if twice := sorted({shape for shape in shapes if shapes.count(shape) > 1}):
            raise ValueError(f"shape {twice[0]} appears twice: give every case a shape number of its own")
        for case in self.cases:
            self.phase(case)
        without = [case.shape for case in self.cases if case.share is None]
        if 0 < len(without) < len(self.cases):
            raise ValueError(f"shape {without[0]} has no share: give all cases of an operator one, or none")
        if not isfinite(sum(case.share or 0.0 for case in self.cases)):
            raise ValueError("the shares add up to no number: give smaller ones")
        return self

    def weights(self) -> tuple[float, ...]:
        """The weight of each case: in proportion to the shares, or equal; they add up to the operator's."""
        if self.cases[0].share is None:
            return (self.weight / len(self.cases),) * len(self.cases)
        shares = [case.share or 0.0 for case in self.cases]
        return tuple(self.weight * (share / sum(shares)) for share in shares)

    def phase(self, case: WorkloadCase) -> Phase:
        """The phase that a case counts to. Raises ValueError if nothing tells."""
        if case.phase is not None and case.phase not in self.phases:
            raise ValueError(f"shape {case.shape}: phase {case.phase} is not among the operator's phases")
        if case.phase is not None or len(self.phases) == 1:
            return case.phase or self.phases[0]
        if case.rows is None:
            raise ValueError(f"shape {case.shape}: no input counts its tokens: add phase: prefill or decode")
        return "decode" if case.rows <= DECODE_TOKENS else "prefill"


class Workload(Record):
    """Operators with their weights and cases."""

    name: Text
    provenance: Text
    operators: Annotated[dict[Identifier, OperatorWorkload], Field(min_length=1)]

    def cases(self, operator: str) -> tuple[Case, ...]:
        """The cases of an operator, which share its weight. Raises UsageError."""
        entry = self.operators[self._known(operator)]
        return tuple(
            Case(
                operator=operator,
                id=f"{operator}-{case.shape:03d}",
                init=case.init,
                input=case.input,
                phase=entry.phase(case),
                weight=weight,
                call_count=case.call_count,
                seen_in=case.seen_in,
                production_us=case.production_us,
            )
            for case, weight in zip(entry.cases, entry.weights(), strict=True)
        )

    def only(self, operators: Iterable[str]) -> Workload:
        """The part of the workload that these operators make up. Raises UsageError."""
        chosen = {name: self.operators[self._known(name)] for name in operators}
        return Workload(name=self.name, provenance=self.provenance, operators=chosen)

    def _known(self, operator: str) -> str:
        if operator not in self.operators:
            hint = _hint(operator, self.operators)
            raise UsageError(f"workload {self.name} has no operator {operator!r}; {hint}")
        return operator


def load_workload(
    name_or_path: str | Path = "atrex-bench", operators: Iterable[str] | None = None
) -> Workload:
    """Load a workload by name, or from a file or a directory of files; of `operators` alone if given.

    Raises UsageError, one line naming the file, the field and the remedy.
    """
    workload = _merge([_parse(path) for path in _files(name_or_path)])
    return workload if operators is None else workload.only(operators)


def write_workload(workload: Workload, path: Path) -> None:
    """Write a workload as one file that `load_workload` reads back equal. Raises UsageError."""
    head = {"name": workload.name, "provenance": workload.provenance}
    lines = [f"{key}: {_flow(value)}" for key, value in head.items()] + ["operators:"]
    for name, operator in workload.operators.items():
        lines += [f"  {_flow(name)}:", f"    weight: {_flow(operator.weight)}"]
        lines += [f"    phases: {_flow(list(operator.phases))}", "    cases:"]
        lines += [f"      - {_flow(case.model_dump(exclude_defaults=True))}" for case in operator.cases]
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None


def _files(name_or_path: str | Path) -> list[Path]:
    named = WORKLOADS / name_or_path
    place = named if named.is_dir() else Path(name_or_path)
    if place.is_file():
        return [place]
    if not place.is_dir():
        names = [path.name for path in WORKLOADS.iterdir() if path.is_dir()]
        raise UsageError(
            f"no workload {str(name_or_path)!r}, nor such a file; {_hint(str(name_or_path), names)}"
        )
    if files := sorted(place.glob("*.yaml")):
        return files
    raise UsageError(f"{place}: holds no *.yaml: name a workload file, or a directory of them")


def _parse(path: Path) -> Workload:
    remedy = "; see traces/workloads/atrex-bench/rms_norm.yaml for the form"
    return strict_yaml.read(path, Workload.model_validate, remedy)


def _merge(parts: list[Workload]) -> Workload:
    """One workload of its files, which must agree on its name and share no operator."""
    operators: dict[str, OperatorWorkload] = {}
    for part in parts:
        if part.name != parts[0].name:
            raise UsageError(
                f"workload {parts[0].name}: one of its files has name: {part.name}; make them agree"
            )
        if both := operators.keys() & part.operators.keys():
            raise UsageError(f"workload {part.name}: two files hold {min(both)}; keep one of them")
        operators |= part.operators
    provenance = "; ".join(dict.fromkeys(part.provenance for part in parts))
    return Workload(name=parts[0].name, provenance=provenance, operators=operators)


def _flow(value: object) -> str:
    """A value on one line of YAML."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=inf)
    return text.removesuffix("...\n").rstrip("\n")


def _hint(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}?" if near else f"known: {', '.join(names)}"
