"""A kernel file as text and tree: where its kernels are, which expressions are addresses, and edits by span.

Edits replace byte ranges, so that everything else of the file stays as it was, comments and layout included.
"""

from __future__ import annotations

import ast
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.Tuple, ast.List)
_ACCESSES = ("load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_xchg", "atomic_cas")
_INTEGER_CALLS = ("arange", "cdiv", "program_id", "num_programs", "range", "static_range", "multiple_of")
_SHAPED = {
    "zeros": 0,
    "full": 0,
    "broadcast_to": 1,
    "reshape": 1,
    "view": 1,
}  # call -> argument that is a shape

Function = ast.FunctionDef


@dataclass(frozen=True, slots=True)
class Edit:
    """Bytes [start, stop) of a source become `text`."""

    start: int
    stop: int
    text: str


class Source:
    """A parsed file, and what the fault operators want to know of it. Raises SyntaxError."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.raw = text.encode()
        self.tree = ast.parse(text)
        self._lines = [0]
        for line in self.raw.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self.parent: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self.parent[child] = node
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)]
        self.kernels = [function for function in functions if _uses_tl(function)]
        self.hosts = [function for function in functions if not _uses_tl(function)]
        self._address_names: dict[str, set[str]] = {kernel.name: set() for kernel in self.kernels}
        self._addresses: set[ast.AST] = set()
        self._find_addresses()
        self._skipped = {node for root in self._roots_to_skip() for node in ast.walk(root)}

    # -- text ----------------------------------------------------------------------------------

    def span(self, node: ast.AST) -> tuple[int, int]:
        """The byte range of a node, without parentheses around it."""
        start = self._lines[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        return start, self._lines[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]

    def segment(self, node: ast.AST) -> str:
        """The text of a node."""
        start, stop = self.span(node)
        return self.raw[start:stop].decode()

    def operand(self, node: ast.AST) -> str:
        """The text of a node, in parentheses where an operator beside it could tear it apart."""
        text = self.segment(node)
        return text if isinstance(node, _ATOMS) else f"({text})"

    def replace(self, node: ast.AST, text: str) -> Edit:
        """A node's text becomes another."""
        return Edit(*self.span(node), text)

    def line(self, byte: int) -> int:
        """The line, from 1, of a byte."""
        return bisect_right(self._lines, byte)

    def column(self, byte: int) -> int:
        """The column, from 0, of a byte."""
        return byte - self._lines[self.line(byte) - 1]

    def apply(self, edits: Sequence[Edit]) -> str:
        """The source with some edits, which must not overlap."""
        raw = self.raw
        for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
            raw = raw[: edit.start] + edit.text.encode() + raw[edit.stop :]
        return raw.decode()

    # -- walking -------------------------------------------------------------------------------

    def walk(self, functions: Sequence[Function]) -> Iterator[ast.AST]:
        """Nodes of the functions' bodies, but not of what checks arguments, nor of docstrings."""
        for function in functions:
            for statement in function.body:
                for node in ast.walk(statement):
                    if node not in self._skipped:
                        yield node

    def function(self, node: ast.AST) -> Function | None:
        """The innermost function around a node."""
        while (up := self.parent.get(node)) is not None:
            if isinstance(up, ast.FunctionDef):
                return up
            node = up
        return None

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from the inside, up to its function."""
        while (up := self.parent.get(node)) is not None and not isinstance(up, ast.FunctionDef):
            yield up
            node = up

    def is_address(self, node: ast.AST) -> bool:
        """Whether an expression of a kernel only serves to find a place in memory."""
        return node in self._addresses

    def is_data(self, node: ast.AST) -> bool:
        """Whether an expression of a kernel computes values: no address, mask, shape or loop bound."""
        return not self.is_address(node) and not any(_indexes(*pair) for pair in self._chain(node))

    def stores_to_address(self, target: ast.expr) -> bool:
        """Whether a name is part of an address later."""
        function = self.function(target)
        names = self._address_names.get(function.name, set()) if function else set()
        return isinstance(target, ast.Name) and target.id in names

    # -- inside --------------------------------------------------------------------------------

    def _chain(self, node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Pairs of a node and the one around it, from the inside."""
        for up in self.above(node):
            yield node, up
            node = up

    def _roots_to_skip(self) -> Iterator[ast.AST]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Raise | ast.Assert):
                yield node
            elif isinstance(node, ast.If) and node.body and isinstance(node.body[-1], ast.Raise):
                yield node.test
            elif isinstance(node, ast.AnnAssign):
                yield node.annotation
            elif (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or (
                isinstance(node, ast.Call) and tl_name(node) in ("static_assert", "device_print")
            ):
                yield node

    def _find_addresses(self) -> None:
        """Expressions that reach the pointer of an access, through names and calls of other kernels."""
        by_name = {kernel.name: kernel for kernel in self.kernels}
        before = -1
        while before != len(self._addresses):
            before = len(self._addresses)
            for kernel in self.kernels:
                for node in ast.walk(kernel):
                    if not isinstance(node, ast.Call):
                        continue
                    if tl_name(node) in _ACCESSES and node.args:
                        self._mark(kernel, node.args[0])
                    called = by_name.get(getattr(node.func, "id", ""))
                    if called is not None:
                        self._mark_arguments(kernel, node, called)
                self._follow(kernel)

    def _mark_arguments(self, kernel: Function, call: ast.Call, called: Function) -> None:
        names = self._address_names[called.name]
        for parameter, argument in zip(called.args.args, call.args, strict=False):
            if parameter.arg in names:
                self._mark(kernel, argument)

    def _mark(self, kernel: Function, root: ast.AST) -> None:
        for node in ast.walk(root):
            self._addresses.add(node)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._address_names[kernel.name].add(node.id)

    def _follow(self, kernel: Function) -> None:
        """Take up what is assigned to names that are parts of addresses."""
        names = self._address_names[kernel.name]
        before = -1
        while before != len(self._addresses):
            before = len(self._addresses)
            for node in ast.walk(kernel):
                for target, value in _assigned(node):
                    if isinstance(target, ast.Name) and target.id in names and not _loads(value):
                        self._mark(kernel, value)


def _indexes(child: ast.AST, up: ast.AST) -> bool:
    """Whether `up` uses `child` as an index, an extent or one side of a comparison."""
    if isinstance(up, ast.Compare):
        return True
    if isinstance(up, ast.Subscript):
        return child is up.slice
    if isinstance(up, ast.Call):
        name = call_name(up)
        shape = _SHAPED.get(name)
        return name in _INTEGER_CALLS or (shape is not None and up.args[shape : shape + 1] == [child])
    return False


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value
    elif isinstance(node, ast.AugAssign | ast.AnnAssign) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For):
        yield node.target, node.iter


def _loads(value: ast.expr) -> bool:
    """Whether a value is read from memory: its pointer is marked anyway, and its mask is none."""
    return any(isinstance(node, ast.Call) and tl_name(node) == "load" for node in ast.walk(value))


def call_name(call: ast.Call) -> str:
    """The last part of the name that is called."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def tl_name(node: ast.AST) -> str:
    """`load` for a call or an attribute tl.load, tl.math.exp for …; empty for anything else."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        base = node.value
        while isinstance(base, ast.Attribute):
            base = base.value
        if isinstance(base, ast.Name) and base.id in ("tl", "libdevice"):
            return node.attr
    return ""


def _uses_tl(function: Function) -> bool:
    return any(tl_name(node) for statement in function.body for node in ast.walk(statement))
