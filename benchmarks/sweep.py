"""What hangs on the size of the error bound: verdicts with every bound times 1/4 ... 8.

    python benchmarks/sweep.py --device cpu --op rms_norm --dsl cpp --output sweep.md

Honest kernels, and the mutants that a gate with a bound must reject, go through the gates that have one. A
bound that is neither tight nor loose rejects no honest kernel well below 1, and no fewer mutants well above.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import calibration
import torch

from atrex.records import Status

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
GATES = ("sensitivity", "accumulation", "layouts", "accuracy", "shapes")


def rejected_by(examiner: calibration.Calibration, specimen: calibration.Specimen, factor: float) -> str:
    """The first gate with a bound that rejects at the screening level; empty if none does."""
    candidate = specimen.candidate()
    with ExitStack() as stack:
        session = stack.enter_context(examiner.engine.session(candidate))
        judge = examiner.gate_of(session, stack, factor)
        for gate in sorted(GATES, key=lambda gate: gate != specimen.gate):
            if judge(gate, "screen").status is Status.FAIL:
                return gate
    return ""


def main() -> int:
    """Sweep, and print a row for each specimen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--op", action="append", default=[])
    parser.add_argument("--dsl", choices=calibration.DSLS)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    mutants = [specimen for specimen in calibration.mutants() if specimen.gate in GATES]
    chosen = [
        specimen
        for specimen in [*calibration.honest_kernels(), *mutants]
        if specimen.runs_on(asked.device)
        and (not asked.op or specimen.operator in asked.op)
        and asked.dsl in (None, specimen.dsl)
    ]
    command = shlex.join(["python", "benchmarks/sweep.py", *sys.argv[1:]])
    lines = [
        "# Verdicts with every error bound times a factor",
        "",
        f"`{command}`, {time.strftime('%Y-%m-%d')}, torch {torch.__version__}. Scaled is the "
        "g of docs/gates.md, not the output's own rounding. In the table: the first gate with a bound that "
        "rejects at a screening (a mutant's own gate is asked first); –: none.",
        "",
        "| specimen | must be | " + " | ".join(f"× {factor:g}" for factor in FACTORS) + " |",
        "|---" * (len(FACTORS) + 2) + "|",
    ]
    with calibration.Calibration(asked.device) as examiner:
        for specimen in chosen:
            found = [rejected_by(examiner, specimen, factor) or "–" for factor in FACTORS]
            examiner.engine.forget(specimen.candidate())
            must = "accepted" if specimen.honest else f"rejected ({specimen.gate})"
            lines.append(f"| {specimen.name} | {must} | {' | '.join(found)} |")
            print(lines[-1], flush=True)
    if asked.output:
        asked.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
