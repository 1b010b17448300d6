"""Renaming of a source file's global names by scope, in place: everything else of the text stays as it is.

Names of parameters, locals, attributes and keyword arguments are no global names, and strings are left alone.
After the edits the text is parsed again and compared with the renamed syntax tree, so that an edit at a wrong
place is an error and never a wrong file.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_REFLECTION = {"globals", "locals", "vars", "exec", "eval", "__import__"}
_HARMLESS = {"__all__", "__class__", "__debug__"}  # of the names with two underscores on both sides
_GLOBALS_OF = {"__globals__", "f_globals"}
_OPERATION = re.compile(r"\w+::\w+")
_Def = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_Match = ast.MatchAs | ast.MatchStar | ast.MatchMapping


class Unmergeable(Exception):
    """Files that cannot be made one; one line says why."""


@dataclass(frozen=True, slots=True)
class Names:
    """The global names of one file."""

    bound: Mapping[str, frozenset[str]]
    """By each name that the file binds: what its imports bind it to, and "" if anything else binds it."""
    free: frozenset[str]
    """Names that it reads and does not bind, so builtins."""
    words: frozenset[str]
    """All that looks like a name anywhere in the text, strings and comments included."""
    operations: frozenset[str]
    """Strings such as `space::name`, by which operations are registered for the whole process."""


def parse(source: str) -> ast.Module:
    """The syntax tree. Raises Unmergeable."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unmergeable(f"the source does not parse: {error}") from None


def names(source: str) -> Names:
    """The global names of a file. Raises Unmergeable where reading cannot tell, as with `import *`."""
    tree = parse(source)
    found = _read(tree)
    bound: dict[str, set[str]] = {}
    for one in found:
        if one.binds:
            bound.setdefault(one.name, set()).add(_target(one))
    strings = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return Names(
        bound={name: frozenset(targets) for name, targets in bound.items()},
        free=frozenset(one.name for one in found) - set(bound),
        words=frozenset(re.findall(r"\w+", source)),
        operations=frozenset(text for text in strings if _OPERATION.fullmatch(text)),
    )


def union(*several: Names) -> Names:
    """The global names of files that are to become one."""
    bound: dict[str, frozenset[str]] = {}
    for name, targets in (pair for one in several for pair in one.bound.items()):
        bound[name] = bound.get(name, frozenset()) | targets
    free, words, operations = (
        frozenset[str]().union(*sets)
        for sets in zip(*((one.free, one.words, one.operations) for one in several), strict=True)
    )
    return Names(bound, free, words, operations)


def require_renamable(source: str) -> None:
    """Raises Unmergeable if code may reach a global by other means than its name, or asks for the module."""
    for node in ast.walk(parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in _GLOBALS_OF:
            raise Unmergeable(f"line {node.lineno} reads .{node.attr}: its names may be reached as strings")
    found = names(source)
    if reflection := found.free & _REFLECTION:
        raise Unmergeable(f"it uses {min(reflection)}(): its names may be reached as strings")
    for name in sorted((found.free | set(found.bound)) - _HARMLESS):
        if name.startswith("__"):
            raise Unmergeable(f"it uses the global {name}, which means another thing in another file")


def futures(source: str) -> frozenset[str]:
    """The features that it imports from `__future__`. Raises Unmergeable."""
    return frozenset(alias.name for node in _futures(parse(source)) for alias in node.names)


def rename(source: str, new: Mapping[str, str]) -> str:
    """The text with other names for some globals. Raises Unmergeable."""
    tree = parse(source)
    edits = _Edits(source)
    for one in _read(tree):
        if one.name in new:
            edits.rename(one, new[one.name])
    return edits.applied(tree)


def without_futures(source: str) -> str:
    """The text without its imports from `__future__`. Raises Unmergeable."""
    tree = parse(source)
    edits = _Edits(source)
    for node in _futures(tree):
        edits.remove(node)
        tree.body.remove(node)
    return edits.applied(tree)


def with_futures(source: str, features: frozenset[str]) -> str:
    """The text with further imports from `__future__`, right after the docstring. Raises Unmergeable."""
    missing = sorted(features - futures(source))
    if not missing:
        return source
    tree = parse(source)
    index = int(ast.get_docstring(tree, clean=False) is not None)
    line = f"from __future__ import {', '.join(missing)}\n"
    edits = _Edits(source)
    edits.insert_line(tree.body[index], line)
    tree.body.insert(index, ast.parse(line).body[0])
    return edits.applied(tree)


def same_code(one: str, other: str) -> bool:
    """Whether two texts differ in nothing but comments and layout. Raises Unmergeable."""
    return ast.dump(parse(one)) == ast.dump(parse(other))


# Scopes


@dataclass(slots=True)
class _Scope:
    kind: str  # module, class, function or comprehension
    parent: _Scope | None = None
    bound: set[str] = field(default_factory=set)
    declared: set[str] = field(default_factory=set)  # by a `global` statement

    def reads_global(self, name: str) -> bool:
        """Whether this name means a global here. Inner functions do not see the names of a class."""
        at: _Scope | None = self
        while at is not None and at.kind != "module" and name not in at.declared:
            if name in at.bound and (at is self or at.kind != "class"):
                return False
            at = at.parent
        return True


@dataclass(frozen=True, slots=True)
class _Occurrence:
    scope: _Scope
    name: str
    node: ast.AST
    binds: bool
    within: ast.JoinedStr | None  # the outermost f-string around it
    origin: str = ""  # of an import: what the name stands for


class _Reader(ast.NodeVisitor):
    """Notes every name with its scope; which of them are global is known at the end."""

    def __init__(self) -> None:
        self.scope = _Scope("module")
        self.found: list[_Occurrence] = []
        self.within: ast.JoinedStr | None = None

    def note(self, name: str, node: ast.AST, *, binds: bool, origin: str = "") -> None:
        if binds:
            self.scope.bound.add(name)
        self.found.append(_Occurrence(self.scope, name, node, binds, self.within, origin))

    def inside(self, kind: str, *nodes: ast.AST, parameters: tuple[str, ...] = ()) -> None:
        outer, self.scope = self.scope, _Scope(kind, self.scope, set(parameters))
        self.all(*nodes)
        self.scope = outer

    def all(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.note(node.id, node, binds=not isinstance(node.ctx, ast.Load))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        inner = self.scope
        while self.scope.kind == "comprehension" and self.scope.parent:
            self.scope = self.scope.parent
        self.visit(node.target)
        self.scope = inner

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        _require_no_type_parameters(node)
        self.note(node.name, node, binds=True)
        self.all(*node.decorator_list, node.returns)
        self._function(node.args, *node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node.args, node.body)

    def _function(self, args: ast.arguments, *body: ast.AST) -> None:
        every = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
        named = [one for one in every if one is not None]
        self.all(*args.defaults, *args.kw_defaults, *(one.annotation for one in named))
        self.inside("function", *body, parameters=tuple(one.arg for one in named))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        _require_no_type_parameters(node)
        self.note(node.name, node, binds=True)
        self.all(*node.decorator_list, *node.bases, *node.keywords)
        self.inside("class", *node.body)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        first, *others = node.generators
        self.visit(first.iter)  # in the scope around
        results = (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,)
        self.inside("comprehension", first.target, *first.ifs, *others, *results)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Global(self, node: ast.Global) -> None:
        self.scope.declared |= set(node.names)
        for name in node.names:
            self.note(name, node, binds=False)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            first = alias.name.split(".")[0]
            self.note(alias.asname or first, alias, binds=True, origin=alias.name if alias.asname else first)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names if node.module != "__future__" else []:
            if alias.name == "*":
                raise Unmergeable(f"line {node.lineno} imports *: which names it binds cannot be known")
            origin = f"{'.' * node.level}{node.module or ''}.{alias.name}"
            self.note(alias.asname or alias.name, alias, binds=True, origin=origin)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self.note(node.name, node, binds=True)
        self.generic_visit(node)

    def _pattern(self, node: _Match) -> None:
        name = node.rest if isinstance(node, ast.MatchMapping) else node.name
        if name:
            self.note(name, node, binds=True)
        self.generic_visit(node)

    visit_MatchAs = visit_MatchStar = visit_MatchMapping = _pattern

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        outer, self.within = self.within, self.within or node
        self.generic_visit(node)
        self.within = outer

    def visit_TypeAlias(self, node: ast.AST) -> None:
        raise Unmergeable(f"line {getattr(node, 'lineno', 0)} declares a type by a `type` statement")


def _require_no_type_parameters(node: _Def) -> None:
    if getattr(node, "type_params", None):
        raise Unmergeable(f"{node.name} has type parameters in brackets, whose scope is not followed")


def _read(tree: ast.Module) -> list[_Occurrence]:
    """Every place of a global name. Raises Unmergeable where a class reads what it also sets."""
    reader = _Reader()
    reader.visit(tree)
    found = [one for one in reader.found if one.scope.reads_global(one.name)]
    bound = {one.name for one in found if one.binds}
    for one in reader.found:
        own = one.scope.kind == "class" and one.name in one.scope.bound - one.scope.declared
        if own and not one.binds and one.name in bound:
            line = getattr(one.node, "lineno", 0)
            raise Unmergeable(f"line {line}: {one.name} may be the attribute of the class or the global")
    return found


def _target(one: _Occurrence) -> str:
    """What an import binds the name to; "" for any other binding."""
    return one.origin if isinstance(one.node, ast.alias) else ""


def _futures(tree: ast.Module) -> list[ast.ImportFrom]:
    return [n for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"]


# Edits


class _Edits:
    """Replacements in a text, and the same changes in its syntax tree to check them against."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self.starts = [0, *(found.end() for found in re.finditer(rb"\r\n|\r|\n", self.data))]
        self.made: dict[tuple[int, int], str | ast.JoinedStr] = {}

    def rename(self, one: _Occurrence, new: str) -> None:
        """Change one name. Raises Unmergeable where a name has no place of its own."""
        match one.node:
            case ast.Name() as node:
                node.id = new
                # Places inside an f-string are not reliable before Python 3.12.
                self.made[self._span(one.within or node)] = one.within or new
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() as node:
                node.name = new
                self.made[self._find(rb"(?:def|class)[\s\\]+(\w+)", node)] = new
            case ast.alias() as node:
                if "." in node.name and not node.asname:
                    raise Unmergeable(f"line {node.lineno}: `import {node.name}` cannot get another name")
                node.asname = new
                self.made[self._span(node)] = f"{node.name} as {new}"
            case ast.Global() as node:
                node.names = [new if name == one.name else name for name in node.names]
                self.made[self._find(rb"\b(" + one.name.encode() + rb")\b", node)] = new
            case ast.ExceptHandler(type=ast.expr() as caught) as node:
                node.name = new
                self.made[self._find(rb"\bas\s+(\w+)", node, self._span(caught)[1])] = new
            case _:
                raise Unmergeable(f"the global {one.name} is bound by a pattern")

    def remove(self, node: ast.stmt) -> None:
        """Take a statement out, and its line if nothing else is on it."""
        start, end = self._span(node)
        if start in self.starts and end + 1 in self.starts:
            end += 1
        self.made[start, end] = ""

    def insert_line(self, before: ast.stmt, line: str) -> None:
        """Put a line before a statement and its decorators."""
        first = min([before.lineno, *(d.lineno for d in getattr(before, "decorator_list", ()))])
        start = self.starts[first - 1]
        self.made[start, start] = line

    def applied(self, tree: ast.Module) -> str:
        """The new text, which means the same as the changed tree. Raises Unmergeable if it does not."""
        parts, done = list[bytes](), 0
        for (start, end), new in sorted(self.made.items(), key=lambda edit: edit[0]):
            made = new if isinstance(new, str) else _unparsed(new)
            parts += [self.data[done:start], made.encode()]
            done = end
        text = b"".join([*parts, self.data[done:]]).decode()
        if ast.dump(parse(text)) != ast.dump(tree):
            raise Unmergeable("a name could not be changed at its place in the text")
        return text

    def _span(self, node: ast.expr | ast.stmt | ast.alias | ast.excepthandler) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return self._at(node.lineno, node.col_offset), self._at(end_line, end_column)

    def _at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def _find(
        self, pattern: bytes, node: ast.stmt | ast.excepthandler, begin: int | None = None
    ) -> tuple[int, int]:
        """Where the group of a pattern is first found in a node."""
        start, end = self._span(node)
        found = re.compile(pattern).search(self.data, start if begin is None else begin, end)
        if found is None:
            raise Unmergeable(f"line {node.lineno}: the place of a name is not found")
        return found.span(1)


def _unparsed(node: ast.JoinedStr) -> str:
    try:
        return ast.unparse(node)
    except ValueError as error:
        raise Unmergeable(f"line {node.lineno}: an f-string cannot be written anew: {error}") from None
