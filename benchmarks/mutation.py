"""Mutate honest kernels, and measure how many provably wrong variants the gates kill.

    python benchmarks/mutation.py --device cpu --op rms_norm --limit 20 --output page.md --json results.json
    python benchmarks/mutation.py --device cpu --show ID --input '{…}'

Every mutant has one fault (tests/mutation). Only those count that a search independent of the gates shows to
be wrong on a legal input; they are judged by a plain allclose on production inputs and by the gates. `--show`
prints a mutant's change and what it does on a witness that a report names. Exits with 1 if a mutant with a
clear witness survives the gates.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from measured import called, conditions

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for the package tests.mutation

from atrex.judge import Engine  # noqa: E402
from atrex.problem import operators, resolve_operator  # noqa: E402
from atrex.protocol import InputSpec  # noqa: E402
from atrex.records import Device  # noqa: E402
from atrex.roofline import hardware_name  # noqa: E402
from tests.mutation import replay, report  # noqa: E402
from tests.mutation.campaign import Options, Report, run  # noqa: E402
from tests.mutation.mutants import FAULTS, Mutant, honest_kernels, make_mutants, sample  # noqa: E402


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign, or show one mutant."""
    options = _parser().parse_args(arguments)
    if options.show:
        return _show(options)
    mutants = _mutants(options)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.id}  {mutant.note}")
        return 0
    command = called(__file__, arguments)
    reports = list[Report]()

    def take(one: Report) -> None:
        reports.append(one)
        _write(options, command, reports)

    started = time.time()
    plan = Options(
        device=options.device,
        threads=max(1, (os.cpu_count() or 1) // options.jobs),
        search_seconds=options.search_seconds,
        seed=options.seed,
        until=started + options.seconds if options.seconds else float("inf"),
    )
    run(mutants, plan, options.jobs, take)
    print(_write(options, command, reports))
    return 1 if any(r.survived or r.disturbed for one in reports for r in one.results) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Kill rates of the gates on mutants of honest kernels.")
    parser.add_argument("--device", choices=get_args(Device), default="cpu")
    parser.add_argument("--op", nargs="+", default=[], metavar="OP", help="operators; default: all")
    parser.add_argument("--fault", nargs="+", choices=FAULTS, default=list(FAULTS))
    parser.add_argument("--match", default="", help="only mutants whose id contains this")
    parser.add_argument("--limit", type=int, help="mutants a kernel, spread over the fault classes")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="begin no mutant after this long")
    parser.add_argument("--search-seconds", type=float, default=60.0, help="longest search for a witness")
    parser.add_argument("--seed", type=int, default=0, help="of the witness search")
    parser.add_argument("--output", type=Path, help="write the Markdown page here too")
    parser.add_argument("--json", type=Path, help="write all results here")
    parser.add_argument("--list", action="store_true", help="only name the mutants")
    parser.add_argument("--show", metavar="ID", help="print one mutant's change, and run it on --input")
    parser.add_argument("--input", help="a witness's recipe, as a report prints it")
    return parser


def _mutants(options: argparse.Namespace) -> list[Mutant]:
    chosen = [resolve_operator(name) for name in options.op] or list(operators())
    found = list[Mutant]()
    for kernel in honest_kernels(chosen):
        if kernel.dsl == "cpp" and options.device == "cuda":
            continue
        try:
            own = make_mutants(kernel, options.fault)
        except SyntaxError as error:
            print(f"{kernel.path}: does not parse: {error}", file=sys.stderr)
            continue
        found += sample([mutant for mutant in own if options.match in mutant.id], options.limit)
    return found


def _write(options: argparse.Namespace, command: str, reports: Sequence[Report]) -> str:
    results = sorted((r for one in reports for r in one.results), key=lambda r: (r.kernel, r.line, r.id))
    doubts = [doubt for one in reports for doubt in one.doubts]
    title = f"Mutants on {hardware_name(options.device)}"
    text = report.page(title, conditions(command, options.device), results, doubts)
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    if options.json:
        options.json.write_text(report.to_json(title, command, results, doubts), encoding="utf-8")
    return text


def _show(options: argparse.Namespace) -> int:
    try:
        mutant = replay.find(options.show)
    except KeyError:
        print(f"no mutant {options.show}: its kernel has changed, or is not there", file=sys.stderr)
        return 2
    print(replay.patch(mutant))
    if options.input:
        spec = InputSpec.model_validate(json.loads(options.input))
        with Engine(options.device) as engine:
            print(replay.show(mutant, spec, engine))
    return 0


if __name__ == "__main__":
    sys.exit(main())
