"""Calibrate the gates on kernels that are known to be wrong, and on kernels known to be right.

    python benchmarks/calibration.py --device cpu --op rms_norm --output calibration.md
    python benchmarks/calibration.py --device cuda --only mutants --jobs 6

A mutant is one fault that a plain allclose on production inputs does not see; the first line of its
docstring names the gate that must. It passes through allclose, through the named gate (a screening, then the
full level), and through the gates in their order up to the first rejection. An honest kernel must be
accepted by all gates at the full level (or at --level). Exits with 1 if a mutant escapes or an honest kernel
is rejected.
"""

from __future__ import annotations

import argparse
import ast
import multiprocessing
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Self, get_args

import torch

from agent.bench_plan import spread
from atrex.audit.tasks import ATOL, RTOL, allclose
from atrex.candidate import Candidate, load_candidate
from atrex.contract import Family
from atrex.gates import GATE_NAMES, GATES
from atrex.gates.context import Level
from atrex.inputs import build_inputs
from atrex.judge import CandidateFault, Engine, Session, new_seed
from atrex.problem import Problem, load_problem
from atrex.protocol import Call, InputSpec
from atrex.records import Case, Device, Shape, Status, Verdict
from atrex.verify import Verifier, engine_kind, gate_context, run_gate
from traces.workload import load_workload

ROOT = Path(__file__).parents[1]
DSLS = ("cpp", "triton")
ALLCLOSE_CASES = 3  # production cases of an operator, spread over all
MOST_ELEMENTS = {
    "cuda": 1 << 31,
    "native": 1 << 25,
    "interpreter": 1 << 16,
}  # of an allclose case: rows are cut


@dataclass(frozen=True, slots=True)
class Specimen:
    """A kernel with a known verdict; its file says which, in its docstring."""

    path: Path
    operator: str
    dsl: str
    gate: str  # the gate that must reject it, or "none"
    only: str  # the one device on which the fault can show, or ""
    what: str

    @property
    def name(self) -> str:
        """Unique within the calibration set."""
        return f"{self.operator}/{self.dsl}/{self.path.stem}"

    @property
    def family(self) -> str:
        """What kind of operator it is."""
        return str(load_problem(self.operator).spec.family)

    @property
    def honest(self) -> bool:
        """Whether every gate must accept it."""
        return self.gate == "none"

    def runs_on(self, device: str) -> bool:
        """Whether it can be judged there: C++ runs on the CPU only."""
        return self.only in ("", device) and not (self.dsl == "cpp" and device == "cuda")

    def candidate(self) -> Candidate:
        """The file as the judge takes it."""
        return load_candidate(self.path, self.operator)


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one specimen."""

    specimen: Specimen
    allclose: str  # accepts, rejects, or the fault that ended the call
    named: Verdict | None  # of the gate that must reject it; None for an honest kernel
    first: Verdict | None  # of the first gate that did not pass it
    seconds: float
    slowest: str = ""  # of all gates, for an honest kernel

    @property
    def right(self) -> bool:
        """Whether the verdict is the known one."""
        if self.named is None:
            return self.first is None
        return self.named.status is Status.FAIL


def mutants() -> list[Specimen]:
    """The wrong kernels, by name."""
    return _specimens(ROOT / "tests/mutants")


def honest_kernels() -> list[Specimen]:
    """The controls, and the kernels that the knowledge base ships."""
    shipped = [path for dsl in DSLS for path in sorted((ROOT / "knowledge/kernels" / dsl).glob("*/*.py"))]
    return _specimens(ROOT / "tests/honest") + [
        Specimen(path, path.parent.name, path.parents[1].name, "none", "", "Shipped with the knowledge base.")
        for path in shipped
    ]


def _specimens(directory: Path) -> list[Specimen]:
    return [read_specimen(path) for dsl in DSLS for path in sorted(directory.glob(f"*/{dsl}/*.py"))]


def read_specimen(path: Path) -> Specimen:
    """Read the header of a file <operator>/<dsl>/<name>.py without running it.

    Raises ValueError if it is not as it must be.
    """
    return Specimen(path, path.parents[1].name, path.parent.name, *read_header(path, GATE_NAMES))


def read_header(path: Path, gates: Sequence[str]) -> tuple[str, str, str]:
    """What a docstring says of a kernel with a known verdict: the gate or "none", the one device, the fault.

    Raises ValueError if it is not as it must be.
    """
    lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    gate = lines.pop(0).removeprefix("gate: ") if lines and lines[0].startswith("gate: ") else ""
    only = lines.pop(0).removeprefix("only: ") if lines and lines[0].startswith("only: ") else ""
    if gate not in (*gates, "none"):
        what = f"'gate: {gate}': {gate!r} is no gate"
        raise ValueError(f"{path}: {what}; the docstring must begin with 'gate: NAME', or 'gate: none'")
    if only not in ("", *get_args(Device)):
        raise ValueError(f"{path}: only: {only} is no device")
    what = " ".join(line.strip() for line in lines).strip()
    if not what.endswith("."):
        raise ValueError(f"{path}: the docstring must say in a sentence what is wrong")
    return gate, only, what


def allclose_accepts(session: Session, shape: Shape) -> bool:
    """The usual check: one call on fresh production inputs, compared with eager PyTorch.

    Raises CandidateFault where the call fails.
    """
    problem = session.problem
    spec = InputSpec(shape=shape, seed=new_seed())
    # With the inputs delivered too, there is room for a result wider than the declared one.
    outcome = session.run(Call(inputs=spec, deliver_inputs=True))[0]
    inputs, _ = build_inputs(problem, spec, session.engine.torch_device)
    expected = problem.reference(shape, inputs)
    return set(expected) <= set(outcome.outputs) and allclose(outcome.outputs, expected)


class Calibration:
    """Examines specimens with one engine; a context manager."""

    def __init__(self, device: Device, level: Level = "full") -> None:
        self.engine, self.level = Engine(device), level
        self.verifier = Verifier(self.engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.verifier.close()
        self.engine.close()

    def examine(self, specimen: Specimen) -> Finding:
        """One specimen's finding."""
        started = time.monotonic()
        candidate = specimen.candidate()
        try:
            if specimen.honest:
                allclose, first, slowest = self._honest(candidate)
                return Finding(specimen, allclose, None, first, time.monotonic() - started, slowest)
            allclose, named, first = self._mutant(candidate, specimen.gate)
            return Finding(specimen, allclose, named, first, time.monotonic() - started)
        finally:
            self.engine.forget(candidate)

    def _honest(self, candidate: Candidate) -> tuple[str, Verdict | None, str]:
        with self.engine.session(candidate) as session:
            allclose = self._allclose(session)
        cases = cases_of(candidate.operator)
        judgement = self.verifier.judge(candidate, cases, level=self.level, keep_going=True)
        slowest = max(judgement.verdicts, key=lambda verdict: verdict.seconds)
        return allclose, judgement.blamed, f"{slowest.gate} {slowest.seconds:.0f} s"

    def _mutant(self, candidate: Candidate, gate: str) -> tuple[str, Verdict, Verdict | None]:
        with ExitStack() as stack:
            session = stack.enter_context(self.engine.session(candidate))
            judge = self.gate_of(session, stack)
            allclose = self._allclose(session)
            named = judge(gate, "screen")
            if named.status is not Status.FAIL:
                named = judge(gate, "full")
            for other in GATE_NAMES:
                verdict = named if other == gate else judge(other, "screen")
                if verdict.status is not Status.PASS:
                    return allclose, named, verdict
        return allclose, named, None

    def _allclose(self, session: Session) -> str:
        kind = engine_kind(self.engine, session.candidate)
        try:
            for case in spread(cases_of(session.candidate.operator), ALLCLOSE_CASES):
                if not allclose_accepts(session, cut(session.problem, case, MOST_ELEMENTS[kind])):
                    return "rejects"
        except CandidateFault as fault:
            return fault.kind.value
        return "accepts"

    def gate_of(
        self, session: Session, stack: ExitStack, factor: float = 1.0
    ) -> Callable[[str, Level], Verdict]:
        """A function that runs one gate in this session: a worker a mutant is enough."""
        gates = {gate.name: gate for gate in GATES}
        cases = cases_of(session.candidate.operator)

        def sanitized() -> Session:
            return stack.enter_context(self.verifier.sanitizing().session(session.candidate))

        def judge(gate: str, level: Level) -> Verdict:
            context = gate_context(gate, session, cases, level, new_seed(), "atrex verify", sanitized, factor)
            return run_gate(gates[gate], context)

        return judge


def cases_of(operator: str) -> tuple[Case, ...]:
    """The production cases of an operator."""
    return load_workload(operators=[operator]).cases(operator)


def cut(problem: Problem, case: Case, most: int) -> Shape:
    """A production shape with as many rows as have `most` elements; where not even one is, reduced in all."""
    shape = problem.shape(case)
    if problem.rows is not None:
        rows = max(1, min(shape.dims[problem.rows], most // problem.width(shape)))
        shape = problem.resize(shape, **{problem.rows: rows})
    return shape if problem.elements(shape) <= most else problem.shape(problem.small(case))


def report(findings: Sequence[Finding], device: str, command: str) -> str:
    """The findings as a Markdown page."""
    wrong = [finding for finding in findings if not finding.specimen.honest]
    right = [finding for finding in findings if finding.specimen.honest]
    hardware = torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})"
    lines = [
        f"# Calibration of the gates on {device}",
        "",
        f"`{command}` on {hardware}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; "
        f"{sum(finding.seconds for finding in findings):.0f} s of work.",
        "",
        f"- Mutants rejected by the gate they name: **{_count(wrong)}**",
        f"- Mutants that `allclose(atol={ATOL:g}, rtol={RTOL:g})` accepts on {ALLCLOSE_CASES} production "
        f"cases (cut to what the engine computes): **{_accepted(wrong)} of {len(wrong)}**",
        f"- Honest kernels accepted by all gates: **{_count(right)}**",
        "",
        "| family | mutants, by the gate they name | accepted by allclose | gates covered | honest kernels |",
        "|---|---|---|---|---|",
        *(_family_row(family, wrong, right) for family in get_args(Family)),
        "",
    ]
    if wrong:
        lines += [
            "The first gate is the first in their order that rejects at a screening (or, where only the full "
            "level shows the fault, the named gate).",
            "",
            "| mutant | what is wrong | allclose | named gate | its verdict | first gate | s |",
            "|---|---|---|---|---|---|---|",
            *(_mutant_row(finding) for finding in wrong),
            "",
        ]
    if right:
        lines += [
            "| honest kernel | what it is | allclose | all gates | s |",
            "|---|---|---|---|---|",
            *(_honest_row(finding) for finding in right),
            "",
        ]
    return "\n".join(lines)


def _count(findings: Sequence[Finding]) -> str:
    return f"{sum(finding.right for finding in findings)} of {len(findings)}"


def _accepted(findings: Sequence[Finding]) -> int:
    return sum(finding.allclose == "accepts" for finding in findings)


def _family_row(family: str, wrong: Sequence[Finding], right: Sequence[Finding]) -> str:
    mutants, controls = ([f for f in found if f.specimen.family == family] for found in (wrong, right))
    gates = {finding.specimen.gate for finding in mutants}
    return _row(family, _count(mutants), str(_accepted(mutants)), str(len(gates)), _count(controls))


def _mutant_row(finding: Finding) -> str:
    specimen, named = finding.specimen, finding.named
    verdict = f"{named.status.value} {named.reason[:100]}".strip() if named else ""
    first = finding.first.gate if finding.first else "none"
    cells = (specimen.name, specimen.what, finding.allclose, specimen.gate, verdict, first)
    return _row(*cells, f"{finding.seconds:.0f}")


def _honest_row(finding: Finding) -> str:
    first = finding.first
    verdict = f"{first.gate} {first.status.value}: {first.reason[:100]}" if first else "accepted"
    cells = (finding.specimen.name, finding.specimen.what, finding.allclose, verdict)
    return _row(*cells, f"{finding.seconds:.0f} ({finding.slowest})")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


_calibrations: list[Calibration] = []  # of this process of the pool: one engine serves all its specimens


def _examine(specimen: Specimen, device: Device, level: Level) -> Finding:
    if not _calibrations:
        _calibrations.append(Calibration(device, level))
        # A pool's processes end without atexit.
        Finalize(None, _calibrations[0].__exit__, exitpriority=10)
    return _calibrations[0].examine(specimen)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the calibration; the exit status says whether every verdict is the known one."""
    parser = argparse.ArgumentParser(description="Calibrate the gates.")
    parser.add_argument("--device", choices=get_args(Device), default="cpu")
    parser.add_argument("--op", action="append", help="only this operator; repeatable")
    parser.add_argument("--only", choices=("mutants", "honest"), help="half of the set")
    parser.add_argument("--match", default="", help="only the specimens whose name contains this")
    parser.add_argument("--level", choices=get_args(Level), default="full", help="of honest kernels' gates")
    parser.add_argument("--jobs", type=int, default=1, help="specimens examined at a time")
    parser.add_argument("--output", type=Path, help="write the Markdown page here instead of printing it")
    options = parser.parse_args(arguments)
    chosen = [] if options.only == "honest" else mutants()
    chosen += [] if options.only == "mutants" else honest_kernels()
    chosen = [s for s in chosen if s.runs_on(options.device) and options.match in s.name]
    chosen = [s for s in chosen if not options.op or s.operator in options.op]
    command = shlex.join(["python", "benchmarks/calibration.py", *(arguments or sys.argv[1:])])
    found: list[Finding] = []
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_examine, s, options.device, options.level) for s in chosen]):
            found.append(future.result())
            _progress(found[-1])
            findings = sorted(found, key=lambda one: one.specimen.name)
            page = report(findings, options.device, command)
            if options.output:  # after each: a run that is cut off keeps what it saw
                options.output.write_text(page, encoding="utf-8")
    if not options.output:
        print(report(found, options.device, command))
    return 0 if all(finding.right for finding in found) else 1


def _progress(finding: Finding) -> None:
    said = finding.named or finding.first
    verdict = f"{said.gate} {said.status.value} {said.reason}" if said else "accepted by all gates"
    first = f"; first {finding.first.gate}" if finding.first else ""
    head = f"{'ok ' if finding.right else 'NOT'} {finding.specimen.name}: allclose {finding.allclose}"
    took = f"{finding.seconds:.0f} s" + (f" ({finding.slowest})" if finding.slowest else "")
    print(f"{head}; {verdict[:160]}{first}; {took}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
