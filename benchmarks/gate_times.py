"""How long each gate takes for one kernel, and where the judge spends that time.

    python benchmarks/gate_times.py tests/honest/rms_norm/triton/row_per_program.py --op rms_norm
    python benchmarks/gate_times.py K.py --op fused_moe --level screen --in-turn --functions 30

Prints a line as each verdict comes, with the seconds since the beginning and those of the gate, which overlap
where gates run beside one another; at the end the judgement's own. With --functions the judge's main thread
runs under cProfile.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from atrex.candidate import load_candidate
from atrex.commands.common import choose_device, operator_cases
from atrex.errors import run_script
from atrex.gates.context import Level
from atrex.judge import Engine
from atrex.problem import resolve_operator
from atrex.records import Verdict
from atrex.verify import Verifier


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge the kernel; the exit status says whether all gates accepted it."""
    parser = argparse.ArgumentParser(description="Seconds of each gate.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--op", required=True, type=resolve_operator)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--level", choices=get_args(Level), default="full")
    parser.add_argument("--in-turn", action="store_true", help="one gate after the other, on a GPU too")
    parser.add_argument("--functions", type=int, default=0, help="so many of the judge's costliest functions")
    asked = parser.parse_args(arguments)
    started = time.monotonic()

    def say(verdict: Verdict) -> None:
        at = f"{time.monotonic() - started:7.1f} s  {verdict.gate:13} {verdict.status.value:12}"
        print(f"{at} {verdict.seconds:6.1f} s  {verdict.reason}"[:200], flush=True)

    profile = cProfile.Profile()
    beside = False if asked.in_turn else None
    with Engine(choose_device(asked.device)) as engine, Verifier(engine, beside=beside) as verifier:
        if asked.functions:
            profile.enable()
        judgement = verifier.judge(
            load_candidate(asked.file, asked.op),
            operator_cases("atrex-bench", asked.op),
            level=asked.level,
            keep_going=True,
            progress=say,
        )
        profile.disable()
    print(f"{judgement.seconds:.1f} s, {'accepted' if judgement.accepted else judgement.objection}")
    if asked.functions:
        pstats.Stats(profile).sort_stats("tottime").print_stats(asked.functions)
    return 0 if judgement.blamed is None else 1


if __name__ == "__main__":
    run_script(main)
