"""The prepared directory: all that a command-line agent needs, and nothing of what it is judged by."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.lab import Knowledge
from agent.workspace import code
from agent.workspace.task import task
from atrex.candidate import Candidate, detect_dsl
from atrex.errors import EnvironmentProblem, UsageError
from atrex.problem import Problem
from atrex.records import Bound, Case, Device, Dsl
from atrex.roofline import bound, detect, load_calibration
from traces.workload import OperatorWorkload, Workload, WorkloadCase, write_workload

KERNEL, CASES = "kernel.py", "cases.yaml"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A prepared directory, and what is known of it outside."""

    directory: Path
    operator: str
    device: Device
    dsl: Dsl
    visible: tuple[Case, ...]
    hidden: tuple[Case, ...]
    """Never in the directory: for the judge alone."""
    skeleton: Candidate
    """What kernel.py holds while nothing has been written; no version of the kernel."""

    @property
    def kernel(self) -> Path:
        """The file that the tool writes."""
        return self.directory / KERNEL

    @property
    def home(self) -> Path:
        """The tool's own home: settings, caches, temporary files; removed after a session."""
        return self.directory / ".home"


def prepare(
    directory: Path,
    problem: Problem,
    cases: Sequence[Case],
    device: Device,
    dsl: Dsl,
    *,
    hidden: Sequence[Case] = (),
    knowledge: Knowledge = Knowledge(),  # noqa: B008 - frozen
    kernel: str = "",
) -> Workspace:
    """Write the directory, which must be empty or absent: `cases` are seen there, `hidden` are not.

    `kernel`: what kernel.py holds in place of the skeleton, from an earlier session.
    Raises UsageError if it is neither or cannot be written, or for a dsl without a skeleton.
    """
    if both := {case.id for case in cases} & {case.id for case in hidden}:
        raise UsageError(f"case {min(both)} is both visible and hidden")
    operator, skeleton = problem.operator, code.skeleton(problem.spec, dsl)
    files = {
        "TASK.md": task(problem, cases, _bounds(problem, cases, device), device, dsl, begun=bool(kernel)),
        "reference.py": code.reference(problem),
        KERNEL: kernel or skeleton,
        "verify": code.command("verify", operator, device, CASES),
        "measure": code.command("measure", operator, device, CASES),
        **_notes(knowledge),
    }
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise UsageError(f"{shlex.quote(str(directory))} is not empty; name a new directory")
        for name, text in files.items():
            path = directory / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if text.startswith("#!"):
                path.chmod(0o755)
    except OSError as error:
        raise UsageError(f"{directory}: cannot be prepared ({error.strerror})") from None
    write_workload(workload(operator, cases), directory / CASES)
    first = Candidate(operator, detect_dsl(skeleton), skeleton)
    return Workspace(directory, operator, device, dsl, tuple(cases), tuple(hidden), first)


def workload(operator: str, cases: Sequence[Case]) -> Workload:
    """The cases as a workload: `--workload` gives back the same ids, shapes, phases and total weight."""
    lines = [
        WorkloadCase(
            shape=int(case.id.rpartition("-")[2]),
            init=case.init,
            input=case.input,
            phase=case.phase,
            seen_in=case.seen_in,
            call_count=case.call_count,
            production_us=case.production_us,
        )
        for case in cases
    ]
    share = OperatorWorkload(
        weight=sum(case.weight for case in cases) or 1.0,
        phases=tuple(dict.fromkeys(case.phase for case in cases)),
        cases=tuple(lines),
    )
    return Workload(name="workspace", provenance="visible cases", operators={operator: share})


def _bounds(problem: Problem, cases: Sequence[Case], device: Device) -> Mapping[str, Bound]:
    """Rooflines by case id; none on a machine without known peaks."""
    try:
        hardware = detect(device)
    except (EnvironmentProblem, UsageError):
        return {}
    calibration = load_calibration(hardware, device)
    return {case.id: bound(problem.cost(problem.shape(case)), hardware, calibration) for case in cases}


def _notes(knowledge: Knowledge) -> dict[str, str]:
    """Reference kernels and notes of the knowledge base, as files."""
    files = {f"knowledge/{_plain(kernel.name)}.py": kernel.source for kernel in knowledge.kernels}
    return files | {f"knowledge/{_plain(passage.name)}.md": passage.text for passage in knowledge.passages}


def _plain(name: str) -> str:
    """A name that is a plain file's: knowledge items are named by paths."""
    text = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in name)
    return text.removesuffix(".py").removesuffix(".md").strip(".-") or "note"
