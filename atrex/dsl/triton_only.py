"""Whether a function that Triton's interpreter runs is a Triton function: itself it takes any Python.

A kernel whose body is NumPy, or a call of a library, is interpreted as readily as one that a GPU could run.
Only what Triton's compiler could take is let through: its own language, other kernels, plain constants.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import textwrap
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

_BUILTINS = frozenset(
    ("range", "min", "max", "len", "int", "float", "bool", "abs", "isinstance", "print", "tuple", "list")
)
_STATEMENTS = (
    *(ast.Import, ast.ImportFrom, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Try),
    *(ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.Await, ast.Delete),
)
_INSIDES = frozenset(("handle", "data"))  # of the interpreter's tensors: NumPy arrays


class CompilationError(RuntimeError):
    """A function that no GPU could run."""


def watch_functions(interpreted: Any) -> None:
    """Check every function of this class, kernel or called by one, before it first runs."""
    native_rewrite = interpreted.rewrite

    def rewrite(self: Any) -> Any:
        if self.fn not in self.rewritten_fn and not _of_triton(self.fn.__globals__.get("__name__")):
            require_triton(self.fn)
        return native_rewrite(self)

    interpreted.rewrite = rewrite


def require_triton(function: Callable[..., Any]) -> None:
    """Raise CompilationError unless a `@triton.jit` function keeps to what Triton compiles."""
    if (found := next(_foreign(function), None)) is not None:
        raise CompilationError(f"{function.__name__} is no Triton kernel: it uses {found}")


def require_arguments(function: Callable[..., Any], values: dict[str, Any]) -> None:
    """Raise CompilationError for an argument of a launch that is code of another kind."""
    for name, value in values.items():
        for one in value if isinstance(value, tuple) else (value,):
            if (callable(one) or isinstance(one, ModuleType)) and not _known(one):
                raise CompilationError(f"{function.__name__} is no Triton kernel: {name} is {_told(one)}")


def _foreign(function: Callable[..., Any]) -> Iterator[str]:
    """What it uses that is not Triton's."""
    try:
        source = textwrap.dedent(inspect.getsource(function))
        tree = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        yield "source that cannot be read"
        return
    if not isinstance(tree, ast.FunctionDef):
        yield "no source of its own"
        return
    local = {argument.arg for argument in ast.walk(tree.args) if isinstance(argument, ast.arg)}
    nodes = [node for statement in tree.body for node in ast.walk(statement)]
    local |= {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, _STATEMENTS):
            yield f"{type(node).__name__.lower()} (line {node.lineno})"
        elif isinstance(node, ast.Attribute):
            if node.attr in _INSIDES or node.attr.startswith("_"):
                yield f".{node.attr}"
            elif _out_of_reach(function, node, local):
                yield ast.unparse(node)
        elif isinstance(node, ast.Name) and node.id not in local and not _known(_value(function, node.id)):
            yield f"{node.id}, {_told(_value(function, node.id))}"


def _out_of_reach(function: Callable[..., Any], node: ast.Attribute, local: set[str]) -> bool:
    """Whether a dotted name leads out of Triton's modules: they import NumPy and others themselves."""
    parts = [node.attr]
    inner = node.value
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    if not isinstance(inner, ast.Name) or inner.id in local:
        return False
    value = _value(function, inner.id)
    for part in reversed(parts):
        if not isinstance(value, ModuleType):
            return False  # a member of what is known
        value = getattr(value, part, object)
    return not _known(value)


def _value(function: Callable[..., Any], name: str) -> Any:
    """What a name that is not local stands for; `object`, which no kernel may use, if nothing does."""
    cells = inspect.getclosurevars(function).nonlocals
    if name in cells:
        return cells[name]
    names: dict[str, Any] = getattr(function, "__globals__", {})
    return names.get(name, getattr(builtins, name, object))


def _known(value: Any) -> bool:
    """Triton's own, one of the few functions of Python that it knows, or a constant."""
    if value is None or isinstance(value, bool | int | float | str):
        return True
    if isinstance(value, tuple | list):
        return all(_known(one) for one in value)
    if isinstance(value, ModuleType):
        return value is math or _of_triton(value.__name__)
    if isinstance(value, FunctionType):  # its globals, as anybody may change its name
        return _of_triton(value.__globals__.get("__name__"))
    name = getattr(value, "__name__", "")
    if getattr(builtins, name, None) is value:
        return name in _BUILTINS
    return _of_triton(getattr(value, "__module__", None)) or getattr(value, "__module__", None) == "math"


def _of_triton(module: Any) -> bool:
    return isinstance(module, str) and (module == "triton" or module.startswith("triton."))


def _told(value: Any) -> str:
    name = getattr(value, "__qualname__", "") or getattr(value, "__name__", "")
    return f"{type(value).__name__} {name}".strip()
