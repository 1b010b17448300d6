"""What the three renderers of a benchmark have in common: its facts in words, and which cases to show."""

from __future__ import annotations

from atrex.fallback.records import Outcome as Origin
from atrex.records import Provenance
from atrex.report.text import DASH, duration, machine, plain
from atrex.report.workload import OperatorRow, WorkloadReport
from atrex.score import CaseScore, Saving

TOP = 20  # cases shown where the points are lost
OUTCOMES = {
    "baseline": "",
    "accepted": "accepted",
    "rejected": "REJECTED",
    "undecided": "UNDECIDED",
    "absent": "",
    None: "not reached",
}


def title(report: WorkloadReport) -> str:
    """What ran, over which workload and where."""
    where = f" ({plain(report.provenance.hardware)})" if report.provenance else ""
    return f"{plain(report.agent)} over {plain(report.workload)} on {report.device}{where}"


def warnings(report: WorkloadReport) -> list[str]:
    """What a reader must know before the first number."""
    said = list[str]()
    if report.scale == "small":
        said.append(
            "S is of REDUCED SHAPES (--scale small): it shows that all runs, not how fast production is"
        )
    if report.cases_per_operator is not None:
        said.append(
            f"at most {report.cases_per_operator} cases an operator, which stand for all of its weight"
        )
    if report.phase is not None:
        said.append(f"{report.phase} cases only")
    if open_cases := sum(one.standing != "measured" for one in report.cases):
        said.append(f"{open_cases} of {len(report.cases)} cases have no measurement and count 0")
    return said


def facts(report: WorkloadReport) -> list[tuple[str, str]]:
    """The aggregate with what must be read beside it, as (name, value) pairs."""
    total, count = report.score, len(report.cases)
    measured = sum(one.standing == "measured" for one in report.cases)
    phases = " · ".join(f"{phase} {fine(value)}" for phase, value in total.phases.items())
    part = total.harmonic_measured
    pairs = [
        ("S", f"{fine(total.S)} of the vendor's roofline, weighted over {len(total.operators)} operators"),
        ("A", f"{fine(total.A)} of the attainable bound" if total.A is not None else "not calibrated"),
        ("by phase", phases or DASH),
        ("coverage", f"{total.coverage:.1%} of the weight is in operators whose every case is accepted"),
        ("measured", f"{measured} of {count} cases, {total.measured:.1%} of the weight"),
        (
            "harmonic S",
            f"{fine(total.harmonic)} over all cases"
            + ("" if part is None else f", {fine(part)} over those measured"),
        ),
        ("fast_p", fast(report)),
        ("fallbacks", fallbacks(report)),
        ("asked", str(report.spent) if report.spent else ""),
        ("per point of S", price(report)),
        ("fleet time", "; ".join(map(saving, report.savings)) or _no_saving(report)),
        ("time", duration(report.seconds)),
        ("run", plain(report.run)),
    ]
    return [(name, value) for name, value in pairs if value]


def fast(report: WorkloadReport) -> str:
    """fast_p in words."""
    if report.fast_p is None:
        return "not measured beside eager"
    return "; ".join(
        f"{_limit(one.p)}: {one.cases:.1%} of cases, {one.weight:.1%} of the weight" for one in report.fast_p
    )


def _limit(p: int) -> str:
    return "faster than eager" if p == 1 else f"over {p} times as fast"


def fallbacks(report: WorkloadReport) -> str:
    """Who did the work, by share of the weight; empty where no file was looked at."""
    shares = " · ".join(f"{verdict} {share:.1%}" for verdict, share in report.fallbacks.items())
    return f"{shares} of the weight, by what the hunt for PyTorch fallbacks says" if shares else ""


def price(report: WorkloadReport) -> str:
    """What 0.01 of S has cost; empty where no model was asked."""
    if report.spent is None:
        return ""
    if report.tokens_per_point is None:
        return DASH
    dollars = report.dollars_per_point
    return f"{tokens(report.tokens_per_point)} tokens, {'price unknown' if dollars is None else usd(dollars)}"


def tokens(value: float) -> str:
    """A number of tokens, its thousands apart."""
    return f"{value:,.0f}"


def usd(value: float) -> str:
    """Dollars to the cent, or to three digits where they are few."""
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.3g}"


def fine(value: float | None) -> str:
    """A weighted S or A to four digits: those of eager PyTorch are near 0.01."""
    return DASH if value is None else f"{value:.4f}"


def saving(value: Saving) -> str:
    """A projected saving of device time, in words."""
    verb = "saves" if value.share >= 0 else "costs"
    return (
        f"{verb} {abs(value.share):.1%} on {plain(value.accelerator)}, against production latencies "
        f"known for {value.known:.1%} of the weight ({value.cases} cases)"
    )


def _no_saving(report: WorkloadReport) -> str:
    if report.scale == "small":
        return "not projected: production never ran these shapes"
    known = sorted({name for one in report.cases for name in one.case.production_us})
    others = f" (known for {', '.join(plain(name) for name in known)})" if known else ""
    return f"not projected: no production latency is known for this machine{others}"


def stack(provenance: Provenance | None) -> str:
    """Software under which the numbers were measured, on one line."""
    pairs = machine(provenance)
    return ", ".join(f"{name} {value}" for name, value in pairs if name not in ("hardware", "device"))


def status(row: OperatorRow) -> str:
    """How what ran for an operator stands, with the reason."""
    flag = row.fallback if row.fallback and row.fallback is not Origin.KERNEL else ""
    word = ", ".join(text for text in (OUTCOMES[row.outcome], flag) if text)
    return plain(": ".join(text for text in (word, row.note) if text))


def costliest(report: WorkloadReport) -> list[CaseScore]:
    """The cases that lose the most points."""
    return sorted(report.cases, key=lambda one: -one.lost)[:TOP]


def size(one: CaseScore) -> str:
    """A case's inputs on one line."""
    parts = [f"{name}={_short(value)}" for name, value in one.case.input.items()]
    return plain(" ".join(parts), 200) or DASH


def _short(value: object) -> str:
    return f"[{len(value)}]" if isinstance(value, list) and len(value) > 4 else str(value).replace(" ", "")


def unmeasured(report: WorkloadReport, one: CaseScore) -> str:
    """Why a case has no measurement."""
    return plain(report.reasons.get(one.case.id, "") or one.standing)


def lost_total(report: WorkloadReport) -> float:
    """All points lost, or 1 where none is: what shares are taken of."""
    return sum(one.lost for one in report.cases) or 1.0


def without_measurement(report: WorkloadReport) -> list[tuple[str, str]]:
    """(case id, reason) of every case that has no measurement, for the long reports."""
    return [(one.case.id, unmeasured(report, one)) for one in report.cases if one.standing != "measured"]


def reasons(report: WorkloadReport) -> list[str]:
    """The reasons for which single cases have no measurement, each with its cases; the commonest first.

    What the whole operator's line says already is left out.
    """
    told = {row.op: row.note for row in report.operators}
    groups = dict[str, list[str]]()
    for one in report.cases:
        why = unmeasured(report, one)
        if one.standing != "measured" and why != plain(told[one.case.operator]):
            groups.setdefault(why, []).append(one.case.id)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    return [f"{_cases(ids)}: {why}" for why, ids in ordered]


def _cases(ids: list[str]) -> str:
    if len(ids) <= 3:
        return ", ".join(map(plain, ids))
    return f"{len(ids)} cases ({plain(ids[0])} …)"
