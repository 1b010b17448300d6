"""Who runs in `atrex bench`: PyTorch's own baselines, or a directory of kernels."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Literal, Protocol, get_args

from agent.proposers import baselines
from atrex.candidate import Candidate, load_candidate
from atrex.commands.options import AgentName
from atrex.errors import UsageError
from atrex.problem import BENCH, load_problem, resolve_operator
from atrex.records import Judgement
from atrex.spending import Spending

Kind = Literal["eager", "compile", "library", "replay"]
Hold = Literal["never", "sample", "always"]


class Entrants(Protocol):
    """Whoever gives each operator its kernel, as the loop of a benchmark sees it."""

    @property
    def judged(self) -> bool:
        """Whether the gates must accept its kernels."""
        ...

    @property
    def hold(self) -> Hold:
        """Which cases' timings are held to the judge's clock and results."""
        ...

    @property
    def compiles(self) -> bool:
        """Whether a first call takes seconds of compiling, which several operators can do at a time."""
        ...

    @property
    def spent(self) -> Mapping[str, Spending]:
        """On models, by operator."""
        ...

    def kernel(self, operator: str) -> Candidate | str:
        """What runs for an operator, or why nothing does. Raises Unanswered."""
        ...

    def judgement(self, candidate: str) -> Judgement | None:
        """A full judgement of this very benchmark's cases, where one was made on the way."""
        ...


@dataclass(frozen=True, slots=True)
class Agent:
    """What gives each operator its kernel, and how far that is trusted."""

    kind: Kind
    directory: Path | None = None
    files: Mapping[str, Path] = field(default_factory=dict)  # replay: the kernel of each operator
    strangers: tuple[str, ...] = ()  # replay: files that are named after no operator
    spent: Mapping[str, Spending] = field(default_factory=dict)  # nothing

    @property
    def name(self) -> str:
        """The agent as the command line names it."""
        return f"replay:{self.directory}" if self.directory else self.kind

    @property
    def judged(self) -> bool:
        """Whether the gates must accept its kernels; PyTorch's own are what others are held against."""
        return self.kind == "replay"

    @property
    def hold(self) -> Hold:
        """Which cases' timings are held to the judge's clock and results.

        Eager is the reference, and would be compared with itself; what a compiler or a library makes of it is
        looked at on a sample of the cases; a stranger's kernel on all.
        """
        holds: dict[Kind, Hold] = {
            "eager": "never", "compile": "sample", "library": "sample", "replay": "always",
        }  # fmt: skip
        return holds[self.kind]

    @property
    def compiles(self) -> bool:
        """Whether a first call takes seconds of compiling, which several operators can do at a time."""
        return self.kind == "compile"

    @property
    def beside_eager(self) -> bool:
        """Whether eager PyTorch is measured beside it unless the user says otherwise.

        Not for `compile`: a second contestant doubles the time, and all cases must fit in minutes.
        """
        return self.kind in ("library", "replay")

    def judgement(self, candidate: str) -> Judgement | None:
        """None: no gate has seen them yet."""
        return None

    def kernel(self, operator: str) -> Candidate | str:
        """What runs for an operator, or why nothing does. Raises UsageError for an unreadable file."""
        if self.kind == "replay":
            path = self.files.get(operator)
            return load_candidate(path, operator) if path else f"no {operator}.py in {self.directory}"
        spec = load_problem(operator).spec
        if self.kind == "eager":
            return stamped(baselines.eager(spec))
        if self.kind == "compile":
            return stamped(baselines.compiled(spec))
        if not (BENCH / operator / "library.py").is_file():
            return "no library kernel"
        return stamped(baselines.library(spec))


def stamped(candidate: Candidate) -> Candidate:
    """A baseline whose id changes with the code that it calls: results are kept by content."""
    return replace(candidate, source=f"{candidate.source}\n# bench/ sha256 {_bench_digest()}\n")


@cache
def _bench_digest() -> str:
    """Of all modules under bench/: operators share some, and which ones only an import would tell."""
    digest = hashlib.sha256()
    for path in sorted(BENCH.rglob("*.py")):
        digest.update(f"{path.relative_to(BENCH)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def parse_agent(text: str) -> Agent:
    """The agent that `eager`, `compile`, `library` or `replay:DIR` names. Raises UsageError."""
    kind, colon, directory = text.partition(":")
    if kind == "replay":
        if not directory:
            raise UsageError(
                "--agent replay needs a directory of kernels: replay:DIR, with DIR/<operator>.py"
            )
        return _replay(Path(directory))
    if colon or kind not in get_args(Kind):
        near = get_close_matches(kind, (*get_args(Kind), *get_args(AgentName)), n=1)
        known = f"known: eager, compile, library, replay:DIR, {', '.join(get_args(AgentName))}"
        hint = f"did you mean {near[0]}?" if near and not colon else known
        raise UsageError(f"unknown agent {text!r}; {hint}")
    return Agent(kind)  # type: ignore[arg-type]


def _replay(directory: Path) -> Agent:
    if not directory.is_dir():
        raise UsageError(f"--agent replay:{directory}: there is no such directory")
    files, strangers = dict[str, Path](), list[str]()
    for path in sorted(directory.glob("*.py")):
        try:
            operator = resolve_operator(path.stem)
        except UsageError:
            strangers.append(path.name)
            continue
        if operator in files:
            raise UsageError(f"{path} and {files[operator].name} are both for {operator}; keep one of them")
        files[operator] = path
    if not files:
        raise UsageError(f"{directory}: no file is named after an operator, such as {directory}/rms_norm.py")
    return Agent("replay", directory, files, tuple(strangers))
