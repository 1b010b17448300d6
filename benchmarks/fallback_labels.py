"""The hunt for fallbacks on the labelled files: precision, recall, the confusion table.

    python benchmarks/fallback_labels.py --output docs/results/fallback-labels.md
    python benchmarks/fallback_labels.py --dynamic --device cuda --jobs 8

A file is positive if its label is not `kernel`. With --dynamic the files that can run are run, too, and only
they are counted. Exits with 1 if precision or recall of flags is below 0.98, or with --dynamic below 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from measured import called

from atrex.fallback.records import FileReport, Outcome
from atrex.fallback.static import analyse
from atrex.records import Device

ROOT = Path(__file__).parents[1] / "tests/fallbacks"
SETS = {"files": "labels.yaml", "held_out": "held_out.yaml"}
BAR = 0.98


@dataclass(frozen=True, slots=True)
class Labelled:
    """A file with what it really does and what was said of it."""

    path: Path
    name: str
    label: Outcome
    ran: Outcome  # the label once it has run
    report: FileReport
    finds: tuple[str, ...]
    lines: tuple[int, ...]
    runs: bool

    @property
    def found(self) -> bool:
        """Whether the finding that must be there is: on its line, or in its words."""
        if self.label is Outcome.BROKEN or not (self.lines or self.finds):
            return True
        words = [word.rpartition(".")[2].lower() for word in self.finds]
        return any(
            finding.line in self.lines or any(word in finding.operation.lower() for word in words)
            for finding in self.report.findings
        )


def labelled(which: str = "files") -> list[Labelled]:
    """All files of a set (`files` or `held_out`) with their static reports."""
    path = ROOT / SETS[which]
    labels: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = []
    for name, label in sorted(labels.items()):
        entry = label.get("entry") or ""
        entry = "" if entry in ("Model", "ModelNew") else entry
        report = analyse(ROOT / which / name, name=name, operator=label.get("operator") or "", entry=entry)
        finds = tuple(label.get("finds") or ())
        lines = tuple(line for line in (label.get("line"), *(label.get("also") or ())) if line)
        runs = bool(label.get("runs")) and bool(label.get("operator")) and not entry
        verdict = Outcome(label["verdict"])
        ran = Outcome(label.get("ran", verdict))
        found.append(Labelled(ROOT / which / name, name, verdict, ran, report, finds, lines, runs))
    return found


def run(files: list[Labelled], device: Device, jobs: int, most: int) -> list[Labelled]:
    """Those that can be run, with what was seen of them."""
    from atrex.candidate import load_candidate
    from atrex.commands.common import operator_cases
    from atrex.fallback.dynamic import Run, examine_all, few_cases
    from atrex.judge import Engine

    chosen = [one for one in files if one.runs]
    cases = {
        name: few_cases(name, operator_cases("atrex-bench", name), most, reduced=device == "cpu")
        for name in {one.report.operator for one in chosen}
    }
    runs = [
        Run(
            load_candidate(one.path, one.report.operator),
            cases[one.report.operator],
            one.report,
        )
        for one in chosen
    ]
    done = []
    with Engine(device) as engine:
        for one, report in zip(chosen, examine_all(engine, runs, jobs), strict=True):
            done.append(replace(one, label=one.ran, report=report))
            flag = "  " if one.ran is report.verdict else "! "
            print(f"{flag}{one.name}: label {one.ran}, {report.verdict}: {report.reason}", flush=True)
    return done


def rates(files: list[Labelled]) -> tuple[float, float]:
    """Precision and recall of flagging a file at all."""
    flagged = [one for one in files if one.report.flagged]
    positive = [one for one in files if one.label is not Outcome.KERNEL]
    both = sum(one.label is not Outcome.KERNEL for one in flagged)
    return both / max(1, len(flagged)), both / max(1, len(positive))


def table(files: list[Labelled], seconds: float) -> str:
    """The confusion table, and each file that is not as labelled."""
    precision, recall = rates(files)
    counts = Counter((one.label, one.report.verdict) for one in files)
    same = sum(one.label is one.report.verdict for one in files)
    lines = [
        "# The hunt for fallbacks on the labelled files",
        "",
        f"`{called(__file__)}`, {time.strftime('%Y-%m-%d')}: "
        f"{len(files)} files, "
        f"{sum(one.label is not Outcome.KERNEL for one in files)} of them with a fallback or worse, "
        f"in {seconds:.2f} s. Flagging: **precision {precision:.3f}, recall {recall:.3f}**; the same "
        f"verdict as the label: {same} of {len(files)}; the operation named in the label reported: "
        f"{sum(one.found for one in files)} of {len(files)}.",
        "",
        "| label \\ verdict | " + " | ".join(Outcome) + " |",
        "|---" * (len(Outcome) + 1) + "|",
    ]
    for label in Outcome:
        cells = (str(counts[label, verdict] or "") for verdict in Outcome)
        lines.append(f"| {label} | {' | '.join(cells)} |")
    other = [one for one in files if one.label is not one.report.verdict or not one.found]
    if other:
        lines += ["", "| not as labelled | label | verdict | reason |", "|---|---|---|---|"]
        rows = ((one.name, one.label, one.report.verdict, one.report.reason) for one in other)
        lines += [f"| {' | '.join(str(cell).replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the table; write it where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=tuple(SETS), default="files", help="which of the two sets")
    parser.add_argument("--dynamic", action="store_true", help="run the files that can be run, too")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--cases", type=int, default=2)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    started = time.perf_counter()
    files = labelled(asked.set)
    if asked.dynamic:
        files = run(files, asked.device, asked.jobs, asked.cases)
    text = table(files, time.perf_counter() - started)
    print(text)
    if asked.output:
        asked.output.write_text(text, encoding="utf-8")
    return 0 if min(rates(files)) >= (1 if asked.dynamic else BAR) else 1


if __name__ == "__main__":
    sys.exit(main())
