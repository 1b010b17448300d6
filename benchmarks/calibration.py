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
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, TypeVar, get_args

from calibration_report import ALLCLOSE_CASES, report
from measured import called

from agent.bench_plan import spread
from atrex.audit.tasks import allclose
from atrex.candidate import Candidate, load_candidate
from atrex.errors import UsageError, run_script
from atrex.gates import GATE_NAMES, GATES
from atrex.gates.context import Level
from atrex.inputs import build_inputs
from atrex.judge import CandidateFault, Engine, HarnessError, Session, new_seed
from atrex.pool import at_end, process_pool
from atrex.problem import Problem, load_problem, resolve_operator
from atrex.protocol import Call, InputSpec
from atrex.records import Case, Device, Shape, Status, Verdict
from atrex.verify import Verifier, engine_kind, gate_context, run_gate
from traces.workload import load_workload

Found = TypeVar("Found")  # what an examination finds
ROOT = Path(__file__).parents[1]
DSLS = ("cpp", "triton")
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

    def __init__(
        self, device: Device, level: Level = "full", *, named_only: bool = False, alone: bool = True
    ) -> None:
        self.engine, self.level, self.named_only = Engine(device), level, named_only
        # Specimens beside one another are enough: then the gates of each go in turn.
        self.verifier = Verifier(self.engine, beside=None if alone else False)

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
            for other in () if self.named_only else GATE_NAMES:
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
        self, session: Session, stack: ExitStack, factor: float = 1.0, seed: int | None = None
    ) -> Callable[[str, Level], Verdict]:
        """A function that runs one gate in this session: a worker a mutant is enough.

        `factor`: of every error bound; `seed`: of the inputs, a new one a gate if there is none.
        """
        gates = {gate.name: gate for gate in GATES}
        cases = cases_of(session.candidate.operator)

        def sanitized() -> Session:
            return stack.enter_context(self.verifier.sanitizing().session(session.candidate))

        def judge(gate: str, level: Level) -> Verdict:
            drawn = new_seed() if seed is None else seed
            context = gate_context(gate, session, cases, level, drawn, "atrex verify", sanitized, factor)
            return run_gate(gates[gate], context)

        return judge


def cases_of(operator: str) -> tuple[Case, ...]:
    """The production cases of an operator."""
    return load_workload(operators=[operator]).cases(operator)


def cut(problem: Problem, case: Case, most: int) -> Shape:
    """A production shape with as many rows as have `most` elements; where not even one is, reduced in all."""
    shape = problem.shape(case)
    if problem.rows is not None:
        rows = problem.fitting_rows(shape, shape.dims[problem.rows], most)
        shape = problem.resize(shape, **{problem.rows: rows})
    return shape if problem.elements(shape) <= most else problem.shape(problem.small(case))


_calibrations: list[Calibration] = []  # of this process of the pool: one engine serves all its specimens


def of_this_process(
    device: Device, level: Level = "full", *, named_only: bool = False, alone: bool = True
) -> Calibration:
    """The one that a process of a pool keeps: the first call says how it is."""
    if not _calibrations:
        _calibrations.append(Calibration(device, level, named_only=named_only, alone=alone))
        at_end(_calibrations[0].__exit__)
    return _calibrations[0]


def _examine(specimen: Specimen, alone: bool, *, device: Device, level: Level, named_only: bool) -> Finding:
    """Raises HarnessError where the decisive verdict is none."""
    finding = of_this_process(device, level, named_only=named_only, alone=alone).examine(specimen)
    said = finding.named or finding.first
    if said is not None and said.status is Status.ERROR:
        raise HarnessError(said.reason)
    return finding


def require_some(chosen: Sequence[object]) -> None:
    """Raises UsageError where nothing was chosen: a run over nothing would look like a success."""
    if not chosen:
        raise UsageError("nothing in the calibration set is chosen by these options")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the calibration; the exit status says whether every verdict is the known one."""
    parser = argparse.ArgumentParser(description="Calibrate the gates.")
    parser.add_argument("--device", choices=get_args(Device), default="cpu")
    parser.add_argument("--op", action="append", type=resolve_operator, help="only this operator; repeatable")
    parser.add_argument("--only", choices=("mutants", "honest"), help="half of the set")
    parser.add_argument("--match", action="append", help="only names that contain this; repeatable")
    parser.add_argument("--level", choices=get_args(Level), default="full", help="of honest kernels' gates")
    parser.add_argument("--named-only", action="store_true", help="of a mutant's gates only the one it names")
    parser.add_argument("--jobs", type=int, default=1, help="specimens examined at a time")
    parser.add_argument("--output", type=Path, help="write the Markdown page here instead of printing it")
    options = parser.parse_args(arguments)
    chosen = [] if options.only == "honest" else mutants()
    chosen += [] if options.only == "mutants" else honest_kernels()
    chosen = [s for s in chosen if s.runs_on(options.device) and (not options.op or s.operator in options.op)]
    chosen = [s for s in chosen if any(part in s.name for part in options.match or ("",))]
    require_some(chosen)
    command = called(__file__, arguments)
    found: list[Finding] = []

    def keep(_: Specimen, finding: Finding) -> None:
        found.append(finding)
        _progress(finding)
        if options.output:  # after each: a run that is cut off keeps what it saw
            findings = sorted(found, key=lambda one: one.specimen.name)
            options.output.write_text(report(findings, options.device, command), encoding="utf-8")

    examine = partial(_examine, device=options.device, level=options.level, named_only=options.named_only)
    campaign(chosen, examine, options.jobs, keep)
    if not options.output:
        print(report(found, options.device, command))
    return 0 if len(found) == len(chosen) and all(finding.right for finding in found) else 1


def campaign(
    specimens: Iterable[Specimen],
    examine: Callable[[Specimen, bool], Found],
    jobs: int,
    keep: Callable[[Specimen, Found], None],
) -> None:
    """Examine them, so many at a time, and alone once more those that the machine and not they failed.

    `examine` runs in another process, is told whether it is alone there, and raises where the machine fails.
    """
    left = list(specimens)
    failed = dict[Specimen, str]()
    for processes in (jobs, 1):
        if not left:
            return
        failed = {}
        with process_pool(processes) as pool:
            waiting = {pool.submit(examine, specimen, processes == 1): specimen for specimen in left}
            for future in as_completed(waiting):
                try:
                    found = future.result()
                except Exception as error:  # noqa: BLE001 - alone it may be able to
                    failed[waiting[future]] = f"{type(error).__name__}: {error}"[:300]
                else:
                    keep(waiting[future], found)
        left = list(failed)
    for specimen, how in failed.items():
        print(f"??? {specimen.name}: {how}", file=sys.stderr, flush=True)


def _progress(finding: Finding) -> None:
    said = finding.named or finding.first
    verdict = f"{said.gate} {said.status.value} {said.reason}" if said else "accepted by all gates"
    if not finding.right and said and (seen := said.witness):
        verdict += f"; {seen.case} {seen.output}{list(seen.index)}: {seen.expected}, not {seen.got}"
        verdict += f"; {seen.command}"
    first = f"; first {finding.first.gate}" if finding.first else ""
    head = f"{'ok ' if finding.right else 'NOT'} {finding.specimen.name}: allclose {finding.allclose}"
    took = f"{finding.seconds:.0f} s" + (f" ({finding.slowest})" if finding.slowest else "")
    most = 160 if finding.right else 2000
    print(f"{head}; {verdict[:most]}{first}; {took}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_script(main)
