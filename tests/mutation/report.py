"""The report of a campaign: kill rates by operator class and by fault, allclose beside them, survivors."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any, get_args

from atrex.contract import Family
from tests.mutation.mutants import FAULTS
from tests.mutation.records import Result
from tests.mutation.witness import CLEAR

_MOST_LISTED = 400


def page(title: str, about: str, results: Sequence[Result], doubts: Sequence[str]) -> str:
    """The Markdown page; `about` holds the command."""
    clear = [result for result in results if result.status == "clear"]
    marginal = [result for result in results if result.status == "marginal"]
    survivors = [result for result in clear if not result.killed]
    lines = [
        f"# {title}",
        "",
        f"{about}.",
        "",
        f"- Mutants examined: {_standings(results)}",
        f"- Witnessed clearly (an error of {CLEAR:g} times the documented bound or more, other bits in an "
        f"exact output, NaN or infinity out of place, a write outside the tensors): **{len(clear)}**",
        f"- Of these killed by the gates: **{_share(clear, _killed)}**; "
        f"rejected by a plain allclose on production inputs: **{_share(clear, _loosely)}**",
        f"- Beyond the bound by less (marginal): {len(marginal)}, killed {_share(marginal, _killed)}",
        "",
        *_table("operator class", get_args(Family), clear, lambda result: result.family),
        *_table("operator", sorted({r.operator for r in clear}), clear, lambda result: result.operator),
        *_table("fault", FAULTS, clear, lambda result: result.fault),
        f"First gate to kill: {_first_gates(clear)}; only at the full level: "
        f"{sum(r.level == 'full' for r in clear)}.",
        "",
        "## Survivors",
        "",
        *chain.from_iterable(_survivor(result, about) for result in survivors),
        *([] if survivors else ["None.", ""]),
        *_listed("Marginal survivors", (f"{r.id}: {r.note}; {_seen(r)}" for r in marginal if not r.killed)),
        *_listed("Not judged", (f"{r.id}: {r.why[:200]}" for r in results if r.disturbed)),
        *_listed("Honest kernels outside their bound on a legal input", doubts),
        *_listed(
            "Equivalent or unwitnessed",
            (f"{r.id}: {r.note} ({r.why})" for r in results if r.status == "unwitnessed"),
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"


def to_json(title: str, command: str, results: Sequence[Result], doubts: Sequence[str]) -> str:
    """The same for programs; `replay` reads it."""
    rows = [result.model_dump(mode="json") for result in results]
    whole: dict[str, Any] = {"title": title, "command": command, "doubts": list(doubts), "results": rows}
    return json.dumps(whole, indent=1) + "\n"


def from_json(text: str) -> list[Result]:
    """The results of a written report. Raises ValueError."""
    return [Result.model_validate(row) for row in json.loads(text)["results"]]


def _killed(result: Result) -> bool:
    return result.killed


def _loosely(result: Result) -> bool:
    return result.allclose == "rejects"


def _share(results: Sequence[Result], holds: Callable[[Result], bool]) -> str:
    count = sum(holds(result) for result in results)
    return f"{count} of {len(results)}" + (f" ({count / len(results):.1%})" if results else "")


def _first_gates(clear: Sequence[Result]) -> str:
    counts = Counter(result.gate for result in clear if result.killed)
    return ", ".join(f"{gate} {count}" for gate, count in counts.most_common()) or "none"


def _standings(results: Sequence[Result]) -> str:
    counts = Counter(result.status for result in results)
    return f"{len(results)} ({', '.join(f'{name} {count}' for name, count in sorted(counts.items()))})"


def _table(
    name: str, groups: Iterable[str], clear: Sequence[Result], key: Callable[[Result], str]
) -> list[str]:
    lines = [f"| {name} | witnessed | killed | rejected by allclose |", "|---|---|---|---|"]
    for group in groups:
        own = [result for result in clear if key(result) == group]
        if own:
            killed, loosely = sum(map(_killed, own)), sum(map(_loosely, own))
            lines.append(f"| {group} | {len(own)} | {killed} ({killed / len(own):.1%}) | {loosely} |")
    return [*lines, ""]


def _survivor(result: Result, about: str) -> list[str]:
    assert result.witness is not None
    spec = json.dumps(result.witness.spec.model_dump(mode="json", exclude_defaults=True))
    device = "cuda" if "--device cuda" in about else "cpu"
    again = f"python benchmarks/mutation.py --device {device} --show {shlex.quote(result.id)}"
    return [
        f"- `{result.id}` {result.fault}: {result.note}. allclose {result.allclose}. {result.witness.what}. "
        + (f"Undecided: {result.undecided}. " if result.undecided else "")
        + "Again:",
        "",
        f"      {again} --input {shlex.quote(spec)}",
        "",
    ]


def _seen(result: Result) -> str:
    return result.witness.what if result.witness else ""


def _listed(title: str, rows: Iterable[str]) -> list[str]:
    found = list(dict.fromkeys(rows))
    if not found:
        return []
    cut = [f"- … and {len(found) - _MOST_LISTED} more"] if len(found) > _MOST_LISTED else []
    return [f"## {title}", "", *(f"- {' '.join(row.split())}" for row in found[:_MOST_LISTED]), *cut, ""]
