"""Honest kernels that nobody here wrote through the gates: those of liger-kernel, fla-core and flag-gems.

    python benchmarks/third_party.py --device cuda --jobs 8 --output third_party.md
    python benchmarks/third_party.py rms_norm l2_norm --device cpu --package fla

A kernel is judged within the domain that it has: its wrapper in tests/third_party states, as literals,

    MOST = {"hidden_size": 32768}      # the largest extent of a dimension
    INIT = {"activation": ["silu"]}    # the values of a constructor argument
    WHERE = "rotary_dim == head_size"  # of extents and constructor arguments together
    DEFECTS = {"specials": "why"}      # gates that rightly reject it, by what is wrong with it

Every other gate must pass, or be UNSUPPORTED where the operator's contract lets it be. Exits with 1 if one
does not, or if there was nothing to judge.
"""

from __future__ import annotations

import argparse
import ast
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from measured import called, conditions

from agent.bench_plan import spread
from atrex import provenance
from atrex.candidate import load_candidate
from atrex.commands.common import choose_device
from atrex.contract import InitSpec, PowerOfTwo
from atrex.errors import run_script
from atrex.gates import GATE_NAMES
from atrex.gates.context import Level
from atrex.judge import Engine
from atrex.pool import process_pool
from atrex.problem import Problem, load_problem, operators
from atrex.records import Case, Device, FaultKind, Judgement, Shape, Status, Verdict
from atrex.roofline import hardware_name
from atrex.verify import Verifier
from traces.workload import load_workload

ROOT = Path(__file__).parents[1] / "tests/third_party"
# Module and distribution. The interpreter runs fla's kernels only: liger-kernel's call methods of scalar
# arguments, which are Python's numbers there, and flag-gems launches past Triton's own runtime.
PACKAGES = {"liger_kernel": "liger-kernel", "fla": "fla-core", "flag_gems": "flag-gems"}
INTERPRETED = ("fla",)
_SHORT = {Status.PASS: "pass", Status.FAIL: "FAIL", Status.UNSUPPORTED: "n/a"}


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A file that calls a package's kernel, and the part of the operator's domain that the kernel has."""

    path: Path
    what: str
    most: Mapping[str, int] = field(default_factory=dict)
    init: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    where: str = "True"
    defects: Mapping[str, str] = field(default_factory=dict)

    @property
    def operator(self) -> str:
        """The operator that it implements."""
        return self.path.parent.name

    @property
    def package(self) -> str:
        """The module that it imports."""
        return next(name for name in PACKAGES if self.path.stem.startswith(f"{name}_"))

    @property
    def name(self) -> str:
        """Unique among the wrappers."""
        return f"{self.operator}/{self.path.stem}"

    def runs_on(self, device: str) -> bool:
        """Whether it can be judged there."""
        return device == "cuda" or self.package in INTERPRETED

    def holds(self, problem: Problem, shape: Shape) -> bool:
        """Whether a shape is within its domain."""
        init = problem.full(shape).init
        if any(shape.dims[name] > most for name, most in self.most.items()):
            return False
        if any(init[name] not in values for name, values in self.init.items()):
            return False
        return bool(eval(self.where, {"__builtins__": {}}, {**shape.dims, **init}))

    def narrowed(self) -> Problem:
        """The operator's problem within its domain."""
        problem = load_problem(self.operator)
        spec, contract = problem.spec, problem.contract
        dims = {n: d.model_copy(update={"max": self.most.get(n, d.max)}) for n, d in spec.dims.items()}
        init = {n: _narrowed(i, self.init[n]) if n in self.init else i for n, i in spec.init.items()}
        relations = tuple(
            r for r in contract.relations if not (isinstance(r, PowerOfTwo) and set(r.init) & set(self.init))
        )
        update = {
            "dims": dims,
            "init": init,
            "contract": contract.model_copy(update={"relations": relations}),
        }
        odd = getattr(problem.module, "ODD", ())
        held = tuple(case for case in odd if self.holds(problem, problem.shape_of(*case)))
        module = SimpleNamespace(**{**vars(problem.module), "ODD": held})
        return replace(problem, spec=spec.model_copy(update=update), module=module)

    def cases(self) -> tuple[Case, ...]:
        """The production cases within its domain."""
        problem = load_problem(self.operator)
        cases = load_workload(operators=[self.operator]).cases(self.operator)
        return tuple(case for case in cases if self.holds(problem, problem.shape(case)))


def _narrowed(spec: InitSpec, values: Sequence[Any]) -> InitSpec:
    """A constructor argument of these values only; the gates vary those of type str alone."""
    if spec.type == "str":
        return spec.model_copy(update={"choices": tuple(values)})
    return spec.model_copy(update={"type": "list", "min": None, "max": None, "default": values[0]})


def wrappers() -> list[Wrapper]:
    """All of them, by name."""
    return [read_wrapper(path) for path in sorted(ROOT.glob("*/*.py"))]


def read_wrapper(path: Path) -> Wrapper:
    """What a wrapper says of itself, read without running it.

    Raises ValueError if its name or its docstring is not as it must be.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {
        statement.targets[0].id.lower(): ast.literal_eval(statement.value)
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id in ("MOST", "INIT", "WHERE", "DEFECTS")
    }
    what = " ".join((ast.get_docstring(tree) or "").split())
    if not what.endswith("."):
        raise ValueError(f"{path}: the docstring must say in a sentence what is called")
    if path.parent.name not in operators() or not path.stem.startswith(tuple(f"{p}_" for p in PACKAGES)):
        raise ValueError(f"{path}: must be <operator>/<package>_<what>.py")
    return Wrapper(path, what, **said)


def installed(package: str) -> str:
    """The installed version of a package; empty if there is none."""
    return provenance.installed(PACKAGES[package]) or ""


def judge(
    wrapper: Wrapper,
    device: Device,
    level: Level,
    most: int | None = None,
    gates: Sequence[str] = (),
    seed: int | None = None,
) -> tuple[Judgement, float]:
    """All gates (or some) of one wrapper, in a process with workers of its own."""
    started = time.monotonic()
    # What autotuning chose is kept for the candidate's next worker: the two are the same kernel then.
    os.environ["TRITON_CACHE_AUTOTUNING"] = "1"
    # Gates in turn: the wrappers are many, and go beside one another.
    with Engine(device) as engine, Verifier(engine, beside=False) as verifier:
        judgement = verifier.judge(
            load_candidate(wrapper.path, wrapper.operator, "triton"),
            spread(wrapper.cases(), most),
            level=level,
            gates=gates or GATE_NAMES,
            seed=seed,
            keep_going=True,
            problem=wrapper.narrowed(),
        )
        return judgement, time.monotonic() - started


def rejections(judgement: Judgement) -> list[Verdict]:
    """The verdicts that keep a kernel from being accepted."""
    waived = judgement.may_be_unsupported
    return [
        verdict
        for verdict in judgement.verdicts
        if verdict.status is not Status.PASS
        and not (verdict.status is Status.UNSUPPORTED and verdict.gate in waived)
    ]


def unexplained(wrapper: Wrapper, judgement: Judgement) -> list[Verdict]:
    """The rejections that are not those of a known defect."""
    return [v for v in rejections(judgement) if v.status is not Status.FAIL or v.gate not in wrapper.defects]


def row(wrapper: Wrapper, judgement: Judgement, seconds: float) -> str:
    """A wrapper's row of the table."""
    verdicts = {verdict.gate: verdict for verdict in judgement.verdicts}
    cells = [_cell(verdicts.get(gate)) for gate in GATE_NAMES]
    package = f"{PACKAGES[wrapper.package]} {installed(wrapper.package)}"
    found = rejections(judgement)
    known = [f"{v.gate}: {wrapper.defects[v.gate]}" for v in found if v.gate in wrapper.defects]
    reasons = "; ".join([*known, *(_explained(wrapper, judgement, verdict) for verdict in found)])
    return f"| {' | '.join((wrapper.name, package, *cells, f'{seconds:.0f}', _plain(reasons)))} |"


def _cell(verdict: Verdict | None) -> str:
    if verdict is None:
        return "not run"
    if verdict.fault is FaultKind.REFUSED:
        return "refuses"
    return _SHORT.get(verdict.status, verdict.status.name)


def _explained(wrapper: Wrapper, judgement: Judgement, verdict: Verdict) -> str:
    """Why, where, and the command that shows it again within the kernel's domain."""
    if (witness := verdict.witness) is None:
        return f"{verdict.gate}: {verdict.reason}"
    element = f", {witness.output}{list(witness.index)}" if witness.output else ""
    values = f": expected {witness.expected}, got {witness.got}" if witness.expected else ""
    seen = f"{witness.case}, {witness.transform or 'as is'}{element}{values}"
    again = f"{wrapper.operator} --match {wrapper.path.stem} --device {judgement.device}"
    again += f" --gate {verdict.gate} --seed {judgement.seed}"
    again += "" if judgement.level == "partial" else f" --level {judgement.level}"
    return f"{verdict.gate}: {verdict.reason} ({seen}; `python benchmarks/third_party.py {again}`)"


def _plain(text: str) -> str:
    return " ".join(text.replace("|", "/").split())


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge them, several at a time, and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("operators", nargs="*")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--level", choices=("screen", "full"), default="full")
    parser.add_argument("--package", choices=PACKAGES, action="append", help="only this one; repeatable")
    parser.add_argument("--match", default="", help="only those whose name contains this")
    parser.add_argument("--gate", choices=GATE_NAMES, action="append", help="only this one; repeatable")
    parser.add_argument("--seed", type=int, help="of a judgement that is to be seen again")
    parser.add_argument("--cases", type=int, help="at most so many a kernel, evenly spread")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args(arguments)
    device = choose_device(asked.device)
    command = called(__file__, arguments)
    if unknown := set(asked.operators) - set(operators()):
        parser.error(f"no operator: {', '.join(sorted(unknown))}")
    chosen = [w for w in wrappers() if not asked.operators or w.operator in asked.operators]
    chosen = [w for w in chosen if not asked.package or w.package in asked.package]
    chosen = [w for w in chosen if asked.match in w.name]
    left = [f"{w.name} runs on CUDA only" for w in chosen if not w.runs_on(device)]
    left += [f"{w.name}: {PACKAGES[w.package]} is not installed" for w in chosen if not installed(w.package)]
    chosen = [w for w in chosen if w.runs_on(device) and installed(w.package)]
    head = [
        f"# Third-party kernels through the gates, {hardware_name(device)}",
        "",
        f"{conditions(command, device)}. Each within the domain that its wrapper states.",
        "",
        "| kernel | package | " + " | ".join(GATE_NAMES) + " | s | rejections |",
        "|---" * (len(GATE_NAMES) + 4) + "|",
    ]
    foot = ["", *(f"- not judged: {line}" for line in left)]
    rows, wrong, defective = dict[str, str](), set[str](), set[str]()

    def note(wrapper: Wrapper, judgement: Judgement, seconds: float) -> None:
        rows[wrapper.name] = row(wrapper, judgement, seconds)
        (wrong.add if unexplained(wrapper, judgement) else wrong.discard)(wrapper.name)
        defective.update([wrapper.name] if rejections(judgement) else [])
        print(rows[wrapper.name], flush=True)
        if asked.output:  # after each: a run that is cut off keeps what it saw
            page = "\n".join((*head, *(rows[name] for name in sorted(rows)), *foot))
            asked.output.write_text(page + "\n", encoding="utf-8")

    how = (device, asked.level, asked.cases, asked.gate or (), asked.seed)
    with process_pool(asked.jobs) as pool:
        futures = {pool.submit(judge, w, *how): w for w in chosen}
        for future in as_completed(futures):
            note(futures[future], *future.result())
    for wrapper in chosen:
        if wrapper.name in wrong and "out of memory" in rows[wrapper.name]:  # by its neighbours, perhaps
            note(wrapper, *judge(wrapper, *how))
    print("\n".join(foot[1:]))
    print(f"{len(rows)} kernels, {len(defective)} rejected, {len(wrong)} of them for no known defect")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    run_script(main)
