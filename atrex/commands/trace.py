"""`atrex trace`: profiles of production to a weighted workload, and where its time goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from atrex.commands.common import console_for_output, print_json
from atrex.commands.trace_files import Reading, read
from atrex.commands.trace_problems import identify, rooflines
from atrex.errors import UsageError
from atrex.provenance import installed
from atrex.report.trace_html import render_trace_html
from atrex.report.trace_terminal import (
    render_overview,
    render_side_by_side,
    render_trace_report,
    render_weights,
)
from traces.applications import ApplicationSpec, Fleet, assign, load_applications, parse_card_hours
from traces.classify import classify, load_rules, suggest
from traces.compare import SideBySide, side_by_side, split_of_weights
from traces.derive import derive, provenance, without_cases
from traces.overview import overview
from traces.placed import Placed
from traces.profile import Profile, digest_of
from traces.report import build
from traces.representatives import Caseless, Observed, Reduction, as_record, observe, reduce
from traces.rules import BUILT_IN, REST
from traces.weights import Weights, scale, weigh
from traces.workload import Workload, load_workload, write_workload


@dataclass(frozen=True, slots=True)
class Sharing:
    """Whose time it is."""

    card_hours: tuple[str, ...]
    applications: Path | None
    seed: int


@dataclass(frozen=True, slots=True)
class Output:
    """What to make of the weights, and where to write it."""

    path: Path | None
    name: str | None
    keep: float
    compare: str | None
    as_json: bool


def show(reading: Reading, *, only_unplaced: bool, as_json: bool) -> None:
    """Time by target and phase, and the kernels that no rule places."""
    profiles, _ = read(reading)
    found = overview(_place(profiles, reading.rules), suggest)
    if as_json:
        print_json({"unplaced": found.model_dump(mode="json")["unplaced"]} if only_unplaced else found)
    else:
        console_for_output().print(render_overview(found, only_unplaced=only_unplaced))


def weights(reading: Reading, sharing: Sharing, output: Output) -> None:
    """Weigh operators and write the workload that the profiles make."""
    found = _Weighed.of(reading, sharing)
    reductions = reduce(found.cases, output.keep)
    workload = _workload(found, reductions, reading, sharing, output) if _wanted(output) else None
    if workload and output.path:
        write_workload(workload, output.path)
    compared = _compare(workload, found.weights, output.compare) if workload and output.compare else None
    if output.as_json:
        print_json(_json(found, reductions, compared))
        return
    console = console_for_output()
    console.print(render_weights(found.weights, reductions, found.without))
    if left_out := without_cases(found.weights, reductions):
        console.print(f"without any case, and so in no workload: {', '.join(left_out)}", highlight=False)
    if compared:
        console.print(render_side_by_side(compared))
    if output.path:
        console.print(f"workload: {output.path}", markup=False, highlight=False)


def report(reading: Reading, sharing: Sharing, html: Path | None, *, as_json: bool) -> None:
    """Where the GPU time goes, and where optimising pays."""
    found = _Weighed.of(reading, sharing)
    made = build(
        found.fleet,
        found.placed,
        found.weights,
        found.cases,
        found.without,
        roofline=rooflines(),
        suggest=suggest,
    )
    if html:
        try:
            html.write_text(render_trace_html(made), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{html}: cannot be written ({error.strerror})") from None
    if as_json:
        print_json(made)
    else:
        console_for_output().print(render_trace_report(made))


def _place(profiles: Sequence[Profile], rules: Path | None) -> tuple[Placed, ...]:
    return classify(profiles, load_rules(rules))


@dataclass(frozen=True, slots=True)
class _Weighed:
    fleet: Fleet
    placed: tuple[Placed, ...]
    weights: Weights
    cases: tuple[Observed, ...]
    without: tuple[Caseless, ...]

    @classmethod
    def of(cls, reading: Reading, sharing: Sharing) -> _Weighed:
        """Read, place and weigh."""
        specs = _specs(sharing)
        profiles, _ = read(reading)
        fleet = assign(profiles, specs)
        placed = _place(fleet.profiles, reading.rules)
        cases, without = observe(placed, scale(fleet), fleet)
        return cls(fleet, placed, weigh(fleet, placed, seed=sharing.seed), cases, without)


def _specs(sharing: Sharing) -> tuple[ApplicationSpec, ...]:
    if sharing.card_hours and sharing.applications:
        raise UsageError("--card-hours and --applications say the same: give one of them")
    if sharing.applications:
        return load_applications(sharing.applications)
    return parse_card_hours(sharing.card_hours)


def _wanted(output: Output) -> bool:
    return output.path is not None or output.compare is not None


def _workload(
    found: _Weighed, reductions: Sequence[Reduction], reading: Reading, sharing: Sharing, output: Output
) -> Workload:
    said = provenance(
        found.fleet,
        rules=_digest(reading.rules),
        keep=output.keep,
        seed=sharing.seed,
        version=installed("atrex") or "source tree",
        day=datetime.now(UTC).date(),
    )
    name = output.name or (output.path.stem if output.path else "traces")
    return derive(found.weights, reductions, name=name, provenance=said)


def _digest(rules: Path | None) -> str:
    """The identity of the rules, in the order in which they are asked."""
    return ", then ".join(digest_of(path) for path in (rules, BUILT_IN, REST) if path)


def _compare(workload: Workload, weights: Weights, other: str) -> SideBySide:
    return side_by_side(
        workload, load_workload(other), first_split=split_of_weights(weights), identify=identify
    )


def _json(found: _Weighed, reductions: Sequence[Reduction], compared: SideBySide | None) -> dict[str, object]:
    return {
        "weights": found.weights.model_dump(mode="json"),
        "representatives": [as_record(one).model_dump(mode="json") for one in reductions],
        "without_case": [
            {"operator": one.operator, "why": one.why, "weight": one.weight} for one in found.without
        ],
        "compare": compared.model_dump(mode="json") if compared else None,
    }
