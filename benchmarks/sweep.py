"""What hangs on the size of the error bound: verdicts with every bound times 1/4 ... 8.

    python benchmarks/sweep.py --device cpu --jobs 2 --output sweep.md
    python benchmarks/sweep.py --device cuda --op rms_norm --dsl triton

Honest kernels, and the mutants that a gate with a bound must reject, go through the gates that have one. A
bound that is neither tight nor loose rejects no honest kernel well below 1, and no fewer mutants well above.

All factors see the same inputs, so a wider bound cannot reject what a narrower one accepts: a kernel that
passes at 1/4 passes at all, and one whose own gate rejects it at 8 is rejected by it at all. Only what is
neither is judged at every factor.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import calibration
from measured import called, conditions

from atrex.errors import run_script
from atrex.judge import HarnessError
from atrex.problem import resolve_operator
from atrex.records import Device, Status
from atrex.roofline import hardware_name

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
GATES = ("sensitivity", "accumulation", "layouts", "accuracy", "shapes")
_SEED = 2026


def examine(specimen: calibration.Specimen, _alone: bool, *, device: Device) -> tuple[str, ...]:
    """For each factor the gate that rejects the specimen at the screening level; empty if none does.

    Raises HarnessError where the machine and not the specimen failed.
    """
    examiner = calibration.of_this_process(device, alone=False)
    candidate = specimen.candidate()
    try:
        with ExitStack() as stack:
            session = stack.enter_context(examiner.engine.session(candidate))

            def rejecting(factor: float) -> str:
                judge = examiner.gate_of(session, stack, factor, _SEED)
                for gate in sorted(GATES, key=lambda gate: gate != specimen.gate):
                    found = judge(gate, "screen")
                    if found.status is Status.ERROR:
                        raise HarnessError(f"{gate}: {found.reason}")
                    if found.status is Status.FAIL:
                        return gate
                return ""

            decisive, verdict = (FACTORS[0], "") if specimen.honest else (FACTORS[-1], specimen.gate)
            found = rejecting(decisive)
            if found == verdict:
                return (verdict,) * len(FACTORS)
            return tuple(found if factor == decisive else rejecting(factor) for factor in FACTORS)
    finally:
        examiner.engine.forget(candidate)


def report(rows: dict[calibration.Specimen, tuple[str, ...]], device: Device, command: str) -> str:
    """The page: how many of each kind are rejected at each factor, and every specimen on which it depends."""
    lines = [
        f"# Verdicts with every error bound times a factor, {hardware_name(device)}",
        "",
        f"{conditions(command, device)}. Scaled is the "
        "estimate in the g of docs/gates.md, no rounding. Every factor sees the same inputs (one seed), at "
        "the screening level, through the gates that have a bound: " + ", ".join(GATES) + ".",
        "",
        "| rejected, of | " + " | ".join(f"× {factor:g}" for factor in FACTORS) + " |",
        "|---" * (len(FACTORS) + 1) + "|",
    ]
    for what, honest in (("honest kernels", True), ("mutants", False)):
        found = [verdicts for specimen, verdicts in rows.items() if specimen.honest is honest]
        counts = [sum(bool(verdicts[i]) for verdicts in found) for i in range(len(FACTORS))]
        lines.append(f"| {len(found)} {what} | {' | '.join(map(str, counts))} |")
    depends = [s for s, verdicts in rows.items() if len(set(map(bool, verdicts))) > 1]
    lines += [
        "",
        f"The verdict on {len(depends)} of {len(rows)} depends on the factor.",
        *([""] if depends else []),
    ]
    if depends:
        lines += ["| specimen | must be | " + " | ".join(f"× {factor:g}" for factor in FACTORS) + " |"]
        lines += ["|---" * (len(FACTORS) + 2) + "|"]
    for specimen in sorted(depends, key=lambda one: one.name):
        must = "accepted" if specimen.honest else f"rejected ({specimen.gate})"
        lines.append(f"| {specimen.name} | {must} | {' | '.join(gate or '–' for gate in rows[specimen])} |")
    missed = sorted(s.name for s, verdicts in rows.items() if not s.honest and not any(verdicts))
    lines += [
        "",
        "Mutants that no such gate rejects at a screening, whatever the factor: "
        f"{', '.join(missed) or 'none'}.",
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Sweep, and write the page."""
    parser = argparse.ArgumentParser(description="Verdicts with scaled error bounds.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--op", action="append", type=resolve_operator, default=[])
    parser.add_argument("--dsl", choices=calibration.DSLS)
    parser.add_argument("--only", choices=("mutants", "honest"), help="half of the set")
    parser.add_argument("--match", default="", help="only the specimens whose name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="specimens at a time")
    parser.add_argument("--output", type=Path, help="write the Markdown page here instead of printing it")
    asked = parser.parse_args(arguments)
    mutants = [specimen for specimen in calibration.mutants() if specimen.gate in GATES]
    chosen = [
        specimen
        for specimen in [*calibration.honest_kernels(), *mutants]
        if specimen.runs_on(asked.device)
        and asked.only in (None, "honest" if specimen.honest else "mutants")
        and (not asked.op or specimen.operator in asked.op)
        and asked.dsl in (None, specimen.dsl)
        and asked.match in specimen.name
    ]
    calibration.require_some(chosen)
    command = called(__file__, arguments)
    rows = dict[calibration.Specimen, tuple[str, ...]]()

    def keep(specimen: calibration.Specimen, verdicts: tuple[str, ...]) -> None:
        rows[specimen] = verdicts
        print(specimen.name, *(gate or "–" for gate in verdicts), flush=True)
        if asked.output:
            asked.output.write_text(report(rows, asked.device, command), encoding="utf-8")

    calibration.campaign(chosen, partial(examine, device=asked.device), asked.jobs, keep)
    if not asked.output:
        print(report(rows, asked.device, command))
    return 0 if len(rows) == len(chosen) else 1


if __name__ == "__main__":
    run_script(main)
