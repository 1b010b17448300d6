"""Reads a file as an interpreter would, with what is known of values instead of values.

Both sides of a branch are followed unless its condition is a constant; what comes after a `return` is not.
Only what the entry reaches counts: module level and `__init__` are read to learn what names stand for.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from atrex.fallback import calls, expressions, statements
from atrex.fallback.records import Finding, FindingKind
from atrex.fallback.values import Kernel, Pending, Scope, Tensor, TooMuchError, Value, merged, tensors_in

_MOST_STEPS = 60_000
_DEEPEST = 40  # calls


@dataclass(slots=True)
class Frame:
    """A call in progress."""

    name: str
    line: int
    returns: list[Value] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)
    is_generator: bool = False


@dataclass(slots=True)
class Reader:
    """State of one reading."""

    module: Scope = field(default_factory=lambda: Scope({}))
    findings: dict[tuple[str, str, int, int], Finding] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    registered: dict[str, Value] = field(default_factory=dict)  # "ns::name" to what torch.library runs
    changing: frozenset[str] = frozenset()  # names and attributes whose value a later call may find changed
    modules: dict[str, Value] = field(default_factory=dict)  # what the file puts into sys.modules
    making: Value | None = None  # the class whose metaclass is at work
    strange: list[ast.AST] = field(default_factory=list)  # calls on data of what is not known
    patched: dict[str, Value] = field(default_factory=dict)  # library names that the file assigns
    frames: list[Frame] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    live: bool = False
    handlers: int = 0  # `except` blocks around the present place
    computed: int = 0  # compute seen so far, repetitions included
    steps: int = 0

    def evaluate(self, node: ast.expr, scope: Scope) -> Value:
        """What is known of an expression's value. Raises TooMuchError."""
        self.step()
        return expressions.evaluate(self, node, scope)

    def run(self, body: list[ast.stmt], scope: Scope) -> bool:
        """Run statements; False if the end is not reached."""
        return statements.run(self, body, scope)

    def call(self, function: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
        """What a call gives; findings are noted on the way."""
        self.step()
        return calls.call(self, function, args, keywords, node)

    def step(self) -> None:
        """Count the work. Raises TooMuchError."""
        self.steps += 1
        if self.steps > _MOST_STEPS or len(self.frames) > _DEEPEST:
            raise TooMuchError

    @contextmanager
    def reaching(self, live: bool) -> Iterator[None]:
        """Whether what is read now counts."""
        before, self.live = self.live, live
        try:
            yield
        finally:
            self.live = before

    def compute(self, operation: str, tensors: list[Tensor], node: ast.AST) -> Tensor:
        """An operation of a library on tensors: noted if it works on data, kept in mind on an index."""
        whole = merged(tensors) if tensors else Tensor("data")
        if whole.level == "data":
            self.promote([whole])
            self.report("compute", operation, node)
            return Tensor("data")
        if whole.level == "index":
            return Tensor("index", (*whole.pending, Pending(operation, node, self.chain()))[-16:])
        return Tensor("constant")

    def promote(self, values: list[Value]) -> None:
        """Index arithmetic goes on as a tensor: it is part of the work."""
        for tensor in tensors_in(values):
            for pending in tensor.pending:
                self.report("compute", pending.operation, pending.node, pending.chain)
            tensor.pending = ()

    def report(
        self,
        kind: FindingKind,
        operation: str,
        node: ast.AST,
        chain: tuple[str, ...] | None = None,
        reason: str = "",
    ) -> None:
        """Note a finding once a place, if the place is reached."""
        if not self.live:
            return
        self.computed += kind == "compute"
        line, column = _place(node)
        if not reason:
            reason = (
                "a library computes" if kind == "compute" else "what runs here cannot be known by reading"
            )
            if kind == "compute" and self.handlers:
                reason = "a library computes when the code before it fails"
        found = Finding(
            kind=kind, operation=operation, line=line, column=column,
            chain=self.chain() if chain is None else chain, reason=reason,
        )  # fmt: skip
        self.findings.setdefault((kind, operation, line, column), found)

    def chain(self) -> tuple[str, ...]:
        """The calls that lead here."""
        return tuple(f"{frame.name}:{frame.line}" for frame in self.frames)

    def launch(self, kernel: Kernel, args: list[Value]) -> None:
        """A kernel of the file's own runs: what it got may be written by it."""
        self.promote(args)
        for tensor in tensors_in(args):
            tensor.fill()
        if self.live:
            kernel.launched = True

    def define(self, name: str, node: ast.AST, *, python: bool = True) -> Kernel:
        """A kernel that the file defines; the same place is the same kernel."""
        line = getattr(node, "lineno", 0)
        for kernel in self.kernels:
            if (kernel.name, kernel.line) == (name, line):
                return kernel
        self.kernels.append(Kernel(name, line, python=python))
        return self.kernels[-1]


def _place(node: ast.AST) -> tuple[int, int]:
    """Line and column, both from 1: of a call the name that is called, for calls may follow one another."""
    function = node.func if isinstance(node, ast.Call) else node
    if isinstance(function, ast.Attribute) and function.end_lineno and function.end_col_offset:
        return function.end_lineno, function.end_col_offset - len(function.attr) + 1
    return max(1, getattr(node, "lineno", 1)), getattr(node, "col_offset", 0) + 1
