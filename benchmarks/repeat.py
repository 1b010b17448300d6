"""How often the gates reject what is right: each honest kernel judged many times, with a seed of its own.

    python benchmarks/repeat.py --device cpu --times 20 --jobs 2 --output page.md
    python benchmarks/repeat.py --device cuda --match chunk_loop --gate layouts --times 200 --jobs 4

The gates draw their inputs afresh, so a bound that is a little too tight shows only now and then. Beside the
honest kernels stands each operator's eager reference, by all gates but authenticity. Jobs are neighbours on
the device, which is a thing to try as well. Exits with 1 if a judgement did not pass.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from calibration import Specimen, cases_of, honest_kernels, require_some
from measured import called, conditions

from agent.proposers.baselines import eager
from atrex.candidate import Candidate
from atrex.errors import run_script
from atrex.foreign.rates import share
from atrex.gates import GATES, GRADIENTS, gates_for
from atrex.gates.context import Level
from atrex.judge import Engine
from atrex.pool import process_pool
from atrex.problem import load_problem, operators, resolve_operator
from atrex.records import Device, Judgement, Status, Verdict
from atrex.roofline import hardware_name
from atrex.verify import Verifier

_GATES = tuple(gate.name for gate in (*GATES, GRADIENTS))
_BLOCK = 5  # judgements that one engine serves before the next kernel has its turn


@dataclass(frozen=True, slots=True)
class Task:
    """Some judgements of one kernel. `specimen` None: the operator's eager reference."""

    operator: str
    specimen: Specimen | None
    gates: tuple[str, ...]
    seeds: tuple[int, ...]
    device: Device
    level: Level
    until: float

    @property
    def name(self) -> str:
        """Unique within the run."""
        return self.specimen.name if self.specimen else f"{self.operator}/eager"

    def candidate(self) -> Candidate:
        """What is judged."""
        return self.specimen.candidate() if self.specimen else eager(load_problem(self.operator).spec)


@dataclass(slots=True)
class Tally:
    """What became of a kernel's judgements."""

    judged: int = 0
    seconds: float = 0.0
    not_passed: list[tuple[int, Verdict]] = field(default_factory=list)

    @property
    def rejected(self) -> set[int]:
        """The seeds whose judgement rejects the kernel."""
        return {seed for seed, verdict in self.not_passed if verdict.status is Status.FAIL}


def judge(task: Task) -> tuple[Task, list[Judgement]]:
    """The judgements of a task that there is time for, in a process with workers of its own."""
    done = list[Judgement]()
    candidate, cases = task.candidate(), cases_of(task.operator)
    with Engine(task.device) as engine, Verifier(engine, beside=False) as verifier:
        for seed in task.seeds:
            if time.time() > task.until:
                break
            done.append(
                verifier.judge(
                    candidate, cases, level=task.level, gates=task.gates, seed=seed, keep_going=True
                )
            )
    return task, done


def objections(judgement: Judgement) -> list[Verdict]:
    """The verdicts that are no pass, and that the contract does not allow to be none."""
    excused = {(gate, Status.UNSUPPORTED) for gate in judgement.may_be_unsupported}
    return [
        v for v in judgement.verdicts if v.status is not Status.PASS and (v.gate, v.status) not in excused
    ]


def tasks(asked: argparse.Namespace) -> list[Task]:
    """All blocks of the first seeds before those of the next: a run that is cut off has seen every kernel."""
    kernels: list[tuple[str, Specimen | None]] = [
        (one.operator, one) for one in honest_kernels() if one.runs_on(asked.device)
    ]
    kernels += [(operator, None) for operator in operators()]
    until = time.time() + asked.seconds if asked.seconds else float("inf")
    found = list[Task]()
    for first in range(0, asked.times, _BLOCK):
        seeds = tuple(range(asked.seed + first, asked.seed + min(first + _BLOCK, asked.times)))
        for operator, specimen in kernels:
            known = [gate.name for gate in gates_for(load_problem(operator))]
            barred = () if specimen else ("authenticity",)
            gates = tuple(g for g in known if g not in barred and (not asked.gate or g in asked.gate))
            task = Task(operator, specimen, gates, seeds, asked.device, asked.level, until)
            if gates and asked.match in task.name and (not asked.op or operator in asked.op):
                found.append(task)
    return found


def run(todo: Sequence[Task], jobs: int, device: Device, command: str, output: Path | None) -> bool:
    """Judge them, several at a time; whether some were judged, and all passed."""
    tallies = {task.name: Tally() for task in todo}
    page = ""
    with process_pool(jobs) as pool:
        for future in as_completed([pool.submit(judge, task) for task in todo]):
            task, judgements = future.result()
            tally = tallies[task.name]
            for judgement in judgements:
                tally.judged += 1
                tally.seconds += judgement.seconds
                tally.not_passed += [(judgement.seed, verdict) for verdict in objections(judgement)]
            print(f"{task.name}: {tally.judged} judged, {len(tally.rejected)} rejected", flush=True)
            page = report(tallies, device, command)
            if output:
                output.write_text(page, encoding="utf-8")
    if not output:
        print(page)
    seen = any(tally.judged for tally in tallies.values())
    return seen and not any(tally.not_passed for tally in tallies.values())


def report(tallies: dict[str, Tally], device: Device, command: str) -> str:
    """The page: the rate over all, a row a kernel, a line for each verdict that is no pass."""
    judged = sum(tally.judged for tally in tallies.values())
    rejected = sum(len(tally.rejected) for tally in tallies.values())
    rate = share(rejected, judged)
    lines = [
        f"# False rejections: honest kernels judged again and again, {hardware_name(device)}",
        "",
        f"{conditions(command, device)}. Each judgement has a "
        "seed of its own. Eager references are judged by all gates but authenticity.",
        "",
        f"**{rejected} of {judged} judgements reject** "
        f"(95 % interval {100 * rate.low:.2f} to {100 * rate.high:.2f} %).",
        "",
        "| kernel | judged | rejected | s a judgement |",
        "|---|---|---|---|",
    ]
    for name, tally in sorted(tallies.items()):
        each = f"{tally.seconds / tally.judged:.1f}" if tally.judged else ""
        lines.append(f"| {name} | {tally.judged} | {len(tally.rejected)} | {each} |")
    return "\n".join((*lines, "", *_lines(tallies.items()))) + "\n"


def _lines(tallies: Iterable[tuple[str, Tally]]) -> list[str]:
    return [
        f"- {name}, seed {seed}, {verdict.gate}: {verdict.status.value} {verdict.reason}{_seen(verdict)}"
        for name, tally in sorted(tallies)
        for seed, verdict in tally.not_passed
    ]


def _seen(verdict: Verdict) -> str:
    witness = verdict.witness
    if witness is None or not witness.expected:
        return ""
    where = f"{witness.output}{list(witness.index)}"
    return f" ({witness.case}: {where} expected {witness.expected}, got {witness.got})"


def command_line() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description="Honest kernels through the gates, many times.")
    parser.add_argument("--device", choices=get_args(Device), default="cpu")
    parser.add_argument("--op", action="append", type=resolve_operator, help="only this; repeatable")
    parser.add_argument("--match", default="", help="only what has this in its name")
    parser.add_argument("--gate", action="append", choices=_GATES, help="only this gate; repeatable")
    parser.add_argument("--level", choices=get_args(Level), default="screen")
    parser.add_argument("--times", type=int, default=20, help="judgements a kernel")
    parser.add_argument("--seed", type=int, default=0, help="of the first judgement; the next ones follow")
    parser.add_argument("--jobs", type=int, default=1, help="judgements at a time")
    parser.add_argument("--seconds", type=float, help="begin no judgement after this long")
    parser.add_argument("--output", type=Path, help="write the Markdown page here instead of printing it")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge what is asked for; the exit status says whether everything passed."""
    asked = command_line().parse_args(arguments)
    command = called(__file__, arguments)
    todo = tasks(asked)
    require_some(todo)
    return 0 if run(todo, asked.jobs, asked.device, command, asked.output) else 1


if __name__ == "__main__":
    run_script(main)
