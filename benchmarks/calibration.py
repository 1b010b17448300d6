"""Calibrate the gates of rms_norm on kernels that are known to be wrong, and on kernels known to be right.

    python benchmarks/calibration.py --device cpu --output docs/results/cpu-rms_norm-calibration.md
    python benchmarks/calibration.py --device cuda --only mutants

A mutant is one fault that a plain allclose on production inputs does not see; the first line of its
docstring names the gate that must. It passes through allclose, through the named gate (a screening, then the
full level), and through the gates in their order up to the first rejection. An honest kernel must be
accepted by all gates at the full level. Exits with 1 if a mutant escapes or an honest kernel is rejected.
"""

from __future__ import annotations

import argparse
import ast
import platform
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self, get_args

import torch

from atrex.candidate import Candidate, load_candidate
from atrex.gates import GATE_NAMES, GATES
from atrex.gates.context import GateContext, Level, make_plan
from atrex.inputs import build_inputs
from atrex.judge import CandidateFault, Engine, Session, new_seed
from atrex.problem import Problem
from atrex.protocol import Call, InputSpec
from atrex.records import Case, Device, Status, Verdict
from atrex.verify import Verifier, engine_kind, run_gate
from traces.workload import load_workload

ROOT = Path(__file__).parents[1]
OPERATOR = "rms_norm"
DSLS = ("cpp", "triton")
ATOL, RTOL = 1e-2, 5e-2
ALLCLOSE_CASES = ("rms_norm-023", "rms_norm-004", "rms_norm-052")  # 65488 x 128, 22100 x 1024, 1688 x 7168
INTERPRETER_ELEMENTS = 1 << 16  # of an allclose case in Triton's interpreter: its rows are cut


@dataclass(frozen=True, slots=True)
class Specimen:
    """A kernel with a known verdict; its file says which, in its docstring."""

    path: Path
    dsl: str
    gate: str  # the gate that must reject it, or "none"
    only: str  # the one device on which the fault can show, or ""
    what: str

    @property
    def name(self) -> str:
        """Unique within the calibration set."""
        return f"{self.dsl}/{self.path.stem}"

    @property
    def honest(self) -> bool:
        """Whether every gate must accept it."""
        return self.gate == "none"

    def runs_on(self, device: str) -> bool:
        """Whether it can be judged there: C++ runs on the CPU only."""
        return self.only in ("", device) and not (self.dsl == "cpp" and device == "cuda")

    def candidate(self) -> Candidate:
        """The file as the judge takes it."""
        return load_candidate(self.path, OPERATOR)


@dataclass(frozen=True, slots=True)
class Finding:
    """What became of one specimen."""

    specimen: Specimen
    allclose: str  # accepts, rejects, or the fault that ended the call
    named: Verdict | None  # of the gate that must reject it; None for an honest kernel
    first: Verdict | None  # of the first gate that did not pass it
    seconds: float

    @property
    def right(self) -> bool:
        """Whether the verdict is the known one."""
        if self.named is None:
            return self.first is None
        return self.named.status is Status.FAIL


def mutants() -> list[Specimen]:
    """The wrong kernels, by name."""
    return [specimen for dsl in DSLS for specimen in _specimens(ROOT / "tests/mutants" / OPERATOR / dsl, dsl)]


def honest_kernels() -> list[Specimen]:
    """The controls, and the kernels that the knowledge base ships."""
    found = [specimen for dsl in DSLS for specimen in _specimens(ROOT / "tests/honest" / OPERATOR / dsl, dsl)]
    for dsl in DSLS:
        paths = sorted((ROOT / "knowledge/kernels" / dsl / OPERATOR).glob("*.py"))
        found += [Specimen(path, dsl, "none", "", "Shipped with the knowledge base.") for path in paths]
    return found


def _specimens(directory: Path, dsl: str) -> list[Specimen]:
    return [read_specimen(path, dsl) for path in sorted(directory.glob("*.py"))]


def read_specimen(path: Path, dsl: str) -> Specimen:
    """Read the header of a file without running it. Raises ValueError if it is not as it must be."""
    lines = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").splitlines()
    gate = lines.pop(0).removeprefix("gate: ") if lines and lines[0].startswith("gate: ") else ""
    only = lines.pop(0).removeprefix("only: ") if lines and lines[0].startswith("only: ") else ""
    if gate not in (*GATE_NAMES, "none"):
        raise ValueError(f"{path}: the docstring must begin with 'gate: NAME', or 'gate: none'; got {gate!r}")
    if only not in ("", *get_args(Device)):
        raise ValueError(f"{path}: only: {only!r} is no device")
    what = " ".join(line.strip() for line in lines).strip()
    if not what.endswith("."):
        raise ValueError(f"{path}: the docstring must say in a sentence what is wrong")
    return Specimen(path, dsl, gate, only, what)


def allclose_accepts(session: Session, case: Case, rows: int | None = None) -> bool:
    """The usual check: one call on fresh production inputs, compared with eager PyTorch.

    `rows` cuts the case's token_count. Raises CandidateFault where the call fails.
    """
    problem = session.problem
    shape = problem.shape(case)
    if rows is not None:
        shape = problem.resize(shape, token_count=min(shape.dims["token_count"], rows))
    spec = InputSpec(shape=shape, seed=new_seed())
    # With the inputs delivered too, there is room for a result wider than the declared one.
    outcome = session.run(Call(inputs=spec, deliver_inputs=True))[0]
    inputs, _ = build_inputs(problem, spec, session.engine.torch_device)
    return all(
        name in outcome.outputs
        and torch.allclose(outcome.outputs[name].float(), expected.float(), rtol=RTOL, atol=ATOL)
        for name, expected in problem.reference(shape, inputs).items()
    )


class Calibration:
    """Examines specimens with one engine; a context manager."""

    def __init__(self, device: Device) -> None:
        self.cases = load_workload().cases(OPERATOR)
        self.engine = Engine(device)
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
                allclose, named, first = self._honest(candidate)
            else:
                allclose, named, first = self._mutant(candidate, specimen.gate)
        finally:
            self.engine.forget(candidate)
        return Finding(specimen, allclose, named, first, time.monotonic() - started)

    def _honest(self, candidate: Candidate) -> tuple[str, None, Verdict | None]:
        with self.engine.session(candidate) as session:
            allclose = self._allclose(session)
        judgement = self.verifier.judge(candidate, self.cases, level="full", keep_going=True)
        wrong = (verdict for verdict in judgement.verdicts if verdict.status is not Status.PASS)
        return allclose, None, next(wrong, None)

    def _mutant(self, candidate: Candidate, gate: str) -> tuple[str, Verdict, Verdict | None]:
        with ExitStack() as stack:
            session = stack.enter_context(self.engine.session(candidate))
            judge = self._judge(session, stack)
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
        chosen = [case for case in self.cases if case.id in ALLCLOSE_CASES]
        interpreted = engine_kind(self.engine, session.candidate) == "interpreter"
        try:
            for case in chosen:
                rows = rows_to_run(session.problem, case) if interpreted else None
                if not allclose_accepts(session, case, rows):
                    return "rejects"
        except CandidateFault as fault:
            return fault.kind.value
        return "accepts"

    def _judge(self, session: Session, stack: ExitStack) -> Callable[[str, Level], Verdict]:
        """A function that runs one gate in this session: a worker a mutant is enough."""
        gates = {gate.name: gate for gate in GATES}
        kind = engine_kind(self.engine, session.candidate)

        def judge(gate: str, level: Level) -> Verdict:
            context = GateContext(
                gate=gate,
                session=session,
                problem=session.problem,
                cases=self.cases,
                plan=make_plan(level, kind),
                seed=new_seed(),
                command="atrex verify",
                sanitized=lambda: stack.enter_context(self.verifier.sanitizing().session(session.candidate)),
            )
            return run_gate(gates[gate], context)

        return judge


def rows_to_run(problem: Problem, case: Case) -> int:
    """Rows that the interpreter is asked for in an allclose case."""
    return max(1, INTERPRETER_ELEMENTS // problem.shape(case).dims["hidden_size"])


def report(findings: Sequence[Finding], device: str) -> str:
    """The findings as a Markdown page."""
    wrong = [finding for finding in findings if not finding.specimen.honest]
    right = [finding for finding in findings if finding.specimen.honest]
    hardware = torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})"
    lines = [
        f"# Calibration of the gates: {OPERATOR} on {device}",
        "",
        f"`python benchmarks/calibration.py --device {device}` on {hardware}, torch {torch.__version__}, "
        f"{time.strftime('%Y-%m-%d')}; {sum(finding.seconds for finding in findings):.0f} s.",
        "",
        f"- Mutants rejected by the gate they name: **{_count(wrong)}**",
        f"- Mutants that `allclose(atol={ATOL:g}, rtol={RTOL:g})` accepts on {len(ALLCLOSE_CASES)} "
        f"production cases (the interpreter: on their first rows): "
        f"**{sum(finding.allclose == 'accepts' for finding in wrong)} of {len(wrong)}**",
        f"- Honest kernels accepted by all gates: **{_count(right)}**",
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
    return _row(*cells, f"{finding.seconds:.0f}")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the calibration; the exit status says whether every verdict is the known one."""
    parser = argparse.ArgumentParser(description="Calibrate the gates of rms_norm.")
    parser.add_argument("--device", choices=get_args(Device), default="cpu")
    parser.add_argument("--only", choices=("mutants", "honest"), help="half of the set")
    parser.add_argument("--match", default="", help="only the specimens whose name contains this")
    parser.add_argument("--output", type=Path, help="write the Markdown page here instead of printing it")
    options = parser.parse_args(arguments)
    chosen = [] if options.only == "honest" else mutants()
    chosen += [] if options.only == "mutants" else honest_kernels()
    findings: list[Finding] = []
    with Calibration(options.device) as calibration:
        for specimen in chosen:
            if specimen.runs_on(options.device) and options.match in specimen.name:
                findings.append(calibration.examine(specimen))
                _progress(findings[-1])
    page = report(findings, options.device)
    if options.output:
        options.output.write_text(page, encoding="utf-8")
    else:
        print(page)
    return 0 if all(finding.right for finding in findings) else 1


def _progress(finding: Finding) -> None:
    said = finding.named or finding.first
    verdict = f"{said.gate} {said.status.value} {said.reason}" if said else "accepted by all gates"
    first = f"; first {finding.first.gate}" if finding.first else ""
    head = f"{'ok ' if finding.right else 'NOT'} {finding.specimen.name}: allclose {finding.allclose}"
    print(f"{head}; {verdict[:160]}{first}; {finding.seconds:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
