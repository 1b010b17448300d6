"""Text shared by the renderers: numbers as people read them, and hostile strings made harmless."""

from __future__ import annotations

import unicodedata
from typing import Literal

from atrex.records import Case, Judgement, Latency, Provenance, Ratio, Status, Verdict, Witness
from atrex.report import RunReport
from atrex.score import CaseScore

DASH = "–"


def plain(text: str, limit: int = 400) -> str:
    """One line without control, bidirectional or invisible characters, at most `limit` long.

    Candidates choose some of these strings: an escape sequence must not reach a terminal.
    """
    shown = "".join(" " if c.isspace() else c for c in text[: 4 * limit] if c.isspace() or _visible(c))
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def _visible(character: str) -> bool:
    return not unicodedata.category(character).startswith("C")


def micros(value: float | None) -> str:
    """A time in microseconds with three significant digits."""
    if value is None:
        return DASH
    if value < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def factor(value: float | None) -> str:
    """A speed-up with about three significant digits."""
    if value is None:
        return DASH
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def ratio(value: Ratio | None) -> str:
    """A speed-up with its interval: ``4.31 [4.25,4.38]``."""
    if value is None:
        return DASH
    return f"{factor(value.median)} [{factor(value.low)},{factor(value.high)}]"


def points(value: float | None) -> str:
    """S or A to three digits."""
    return DASH if value is None else f"{value:.3f}"


def duration(seconds: float) -> str:
    """Seconds as ``42 s``, ``5 min 3 s`` or ``2 h 7 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def bar(share: float, width: int) -> str:
    """A horizontal bar of eighth blocks for a share of 1."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")


def dims(case: Case) -> dict[str, int]:
    """The integer inputs of a case, in their order."""
    return {name: value for name, value in case.input.items() if type(value) is int}


def by_loss(report: RunReport) -> list[CaseScore]:
    """Cases, the ones that cost the most points first."""
    return sorted(report.cases, key=lambda one: -one.lost)


def lost_share(report: RunReport) -> dict[str, float]:
    """Share of all lost points by case id."""
    total = sum(one.lost for one in report.cases)
    return {one.case.id: one.lost / total if total else 0.0 for one in report.cases}


def eager_us(one: CaseScore) -> float | None:
    """Eager PyTorch's time as the paired ratio implies it, in microseconds."""
    result = one.result
    if result is None or result.latency is None or result.vs_eager is None:
        return None
    return result.latency.median_us * result.vs_eager.median


def spread(latency: Latency) -> str:
    """A time as ``12.3 [12.1,13.0]``: median and the tenth and ninetieth percentile."""
    return f"{micros(latency.median_us)} [{micros(latency.p10_us)},{micros(latency.p90_us)}]"


def metrics(verdict: Verdict) -> str:
    """What a gate measured, as ``name value`` pairs."""
    return plain(", ".join(f"{name} {_metric(value)}" for name, value in verdict.metrics.items()))


def _metric(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def reason(verdict: Verdict) -> str:
    """Why a gate did not pass; the reason of a crash begins with its kind."""
    return plain(verdict.reason)


def place(witness: Witness) -> str:
    """Where a gate saw a failure: case, transform, seed, output and index."""
    how = f", {witness.transform}" if witness.transform else ""
    at = f", {witness.output or 'output'}{list(witness.index)}" if witness.index or witness.output else ""
    return plain(f"case {witness.case}{how}, seed {witness.seed}{at}")


def speedup(report: RunReport, other: Literal["eager", "compile"]) -> str:
    """The run's speed-up with its interval, and over how many cases it was measured."""
    value = report.speedup_vs_eager if other == "eager" else report.speedup_vs_compile
    if value is None:
        return "not measured"
    return (
        f"{factor(value.median)}× [{factor(value.low)}, {factor(value.high)}] over {covered(report, other)}"
    )


def covered(report: RunReport, other: Literal["eager", "compile"]) -> str:
    """On how many cases a speed-up was measured: ``12 of 14 cases``."""
    results = [one.result for one in report.cases if one.result]
    n = sum((r.vs_eager if other == "eager" else r.vs_compile) is not None for r in results)
    return f"{n} of {len(report.cases)} cases"


def outcome(judgement: Judgement | None) -> str:
    """ACCEPTED, REJECTED, UNDECIDED (a gate could not judge), INCOMPLETE (one has not spoken), NO KERNEL."""
    if judgement is None:
        return "NO KERNEL"
    if judgement.accepted:
        return "ACCEPTED"
    allowed = judgement.may_be_unsupported
    statuses = {v.status for v in judgement.verdicts if v.status != "UNSUPPORTED" or v.gate not in allowed}
    if statuses & {Status.FAIL, Status.UNSUPPORTED}:
        return "REJECTED"
    return "UNDECIDED" if statuses & {Status.ERROR, Status.INCONCLUSIVE} else "INCOMPLETE"


def standing(report: RunReport) -> str:
    """How a run's best kernel stands: `outcome`, or NOT BELIEVED where something spoke against it later."""
    return "NOT BELIEVED" if report.doubt else outcome(report.judgement)


def unspoken(judgement: Judgement) -> list[str]:
    """Required gates without a verdict."""
    spoken = {v.gate for v in judgement.verdicts}
    return [gate for gate in judgement.required if gate not in spoken]


def machine(provenance: Provenance | None) -> list[tuple[str, str]]:
    """Provenance as (name, value) pairs, the unknown ones left out."""
    if provenance is None:
        return []
    return [(name, plain(str(value))) for name, value in provenance.model_dump().items() if value is not None]
