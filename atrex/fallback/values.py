"""What the reader knows of a value without running anything.

A tensor is `data` (an input of the operator or made from one), `index` (lengths, positions, tables) or
`constant` (made from nothing that is passed in). `Unknown` is an ordinary Python value of no interest: a
size, a dtype, a device. `Opaque` is one that may be anything, because it was got at by a trick.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Plain = str | bytes | int | float | complex | bool | None
Kind = Literal["plain", "static", "class", "property"]
Level = Literal["data", "index", "constant"]
_ORDER: tuple[Level, ...] = ("constant", "index", "data")
_LONGEST = 60  # characters of an operation that is quoted
_WRITTEN_OUT = 400  # and of one that is written out to be quoted
_KINDS = {ast.BinOp: "arithmetic", ast.Compare: "a comparison", ast.Subscript: "a subscript"}


class TooMuchError(Exception):
    """A file is larger or deeper than anybody would follow."""


class Value:
    """Base of all."""


@dataclass(frozen=True, slots=True)
class Unknown(Value):
    """A Python value that computes nothing."""


@dataclass(frozen=True, slots=True)
class Opaque(Value):
    """A value that reading cannot know, and `how` it was got at.

    `mild`: of a module that is not known, whose calls matter only if they are given a tensor.
    """

    how: str
    mild: bool = False


@dataclass(frozen=True, slots=True)
class Const(Value):
    """A string, number, boolean or None."""

    value: Plain


@dataclass(frozen=True, slots=True)
class Pending:
    """Arithmetic on an index tensor: glue if it ends on the host, compute if it goes on as a tensor."""

    operation: str
    node: ast.AST
    chain: tuple[str, ...]


@dataclass(slots=True, eq=False)
class Tensor(Value):
    """A tensor of PyTorch, or an array of NumPy; `base` is what it is a view of."""

    level: Level = "data"
    pending: tuple[Pending, ...] = ()
    base: Tensor | None = None
    empty: bool = False  # of no rows, as far as is known

    def fill(self) -> None:
        """Something of the operator's data is written into it."""
        tensor: Tensor | None = self
        while tensor is not None:
            tensor.level, tensor = "data", tensor.base


@dataclass(frozen=True, slots=True)
class Lib(Value):
    """A name of a library: `torch.nn.functional.silu`."""

    path: str


@dataclass(frozen=True, slots=True)
class LibObject(Value):
    """An instance of a library's class: nn.Linear(…), a stream, a generator; `name` that it was given."""

    path: str
    name: str = ""


@dataclass(frozen=True, slots=True)
class Bound(Value):
    """An attribute of a value that is no value itself yet: a method of a tensor, a string, a list."""

    owner: Value
    name: str


@dataclass(slots=True, eq=False)
class Seq(Value):
    """A list, tuple, set or iterator."""

    items: list[Value]


@dataclass(slots=True, eq=False)
class Mapping(Value):
    """A dict; `rest` holds what was put under keys that are not known."""

    items: dict[object, Value]
    rest: list[Value] = field(default_factory=list)

    def all(self) -> list[Value]:
        """Everything that may be in it."""
        return [*self.items.values(), *self.rest]


@dataclass(slots=True, eq=False)
class Scope:
    """Names of a function, class or module, and where to look further."""

    names: dict[str, Value]
    parent: Scope | None = None
    stars: list[str] = field(default_factory=list)  # modules of `from m import *`
    globals: set[str] = field(default_factory=set)
    nonlocals: set[str] = field(default_factory=set)
    is_class: bool = False

    def find(self, name: str) -> Value | None:
        """The value of a name here or further out; class bodies are skipped from inside functions."""
        scope: Scope | None = self
        first = True
        while scope is not None:
            if name in scope.names and (first or not scope.is_class):
                return scope.names[name]
            scope, first = scope.parent, False
        return None

    def module(self) -> Scope:
        """The outermost scope."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def holder(self, name: str) -> Scope:
        """Where an assignment to the name goes."""
        if name in self.globals:
            return self.module()
        if name in self.nonlocals:
            scope = self.parent
            while scope is not None and scope.parent is not None:
                if name in scope.names:
                    return scope
                scope = scope.parent
        return self


@dataclass(slots=True, eq=False)
class Function(Value):
    """A function of the file."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
    scope: Scope
    name: str
    defaults: dict[str, Value]
    owner: Class | None = None
    kind: Kind = "plain"


@dataclass(slots=True, eq=False)
class Method(Value):
    """A function with its first argument."""

    function: Function
    first: Value


@dataclass(slots=True, eq=False)
class Class(Value):
    """A class of the file."""

    name: str
    bases: list[Value]
    scope: Scope
    line: int

    def order(self) -> list[Value]:
        """Itself and its bases, nearest first; those of libraries are at their place."""
        found: list[Value] = [self]
        for base in self.bases:
            for one in base.order() if isinstance(base, Class) else [base]:
                if one not in found:
                    found.append(one)
        return found

    def find(self, name: str, *, after: Class | None = None) -> Value | None:
        """The attribute in the order of resolution, or the library's base that may have it."""
        order = self.order()
        if after is not None and after in order:
            order = order[order.index(after) + 1 :]
        for one in order:
            if isinstance(one, Class):
                if name in one.scope.names:
                    return one.scope.names[name]
            elif not plain_base(one):
                return Bound(one, name)
        return None


@dataclass(slots=True, eq=False)
class Instance(Value):
    """An object of a class of the file."""

    cls: Class
    attributes: dict[str, Value] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Super(Value):
    """super() in a method."""

    instance: Value
    cls: Class


@dataclass(slots=True, eq=False)
class Kernel(Value):
    """A kernel of the file's own: Triton, Gluon, Numba, raw CUDA or C++."""

    name: str
    line: int
    launched: bool = False
    python: bool = True  # launched as kernel[grid](…); False: called


@dataclass(slots=True, eq=False)
class Native(Value):
    """A compiled module of C++ or CUDA source: its functions are kernels, or call a library."""

    kernel: Kernel | None
    library: tuple[str, ...]  # what of a library its source calls


@dataclass(slots=True, eq=False)
class Launcher(Value):
    """kernel[grid]"""

    kernel: Kernel
    empty: bool = False


@dataclass(slots=True, eq=False)
class Partial(Value):
    """A callable with arguments bound, or one that only wraps another."""

    function: Value
    args: list[Value] = field(default_factory=list)
    keywords: dict[str, Value] = field(default_factory=dict)
    through: str = ""  # a library's transformation that it goes through: torch.vmap


@dataclass(slots=True, eq=False)
class Builtin(Value):
    """A callable whose effect the reader knows."""

    call: Callable[[list[Value], dict[str, Value], ast.AST], Value]


@dataclass(slots=True, eq=False)
class Lazy(Value):
    """A generator or coroutine: its body runs when somebody advances it."""

    start: Callable[[], list[Value]]
    items: list[Value] | None = None

    def force(self) -> list[Value]:
        """Run it, once, and give what it yields or returns."""
        if self.items is None:
            self.items = []
            self.items = self.start()
        return self.items


@dataclass(slots=True, eq=False)
class Union(Value):
    """One of several."""

    options: list[Value]


UNKNOWN = Unknown()
NONE = Const(None)

_PLAIN_BASES = {
    "torch.nn.Module", "torch.autograd.Function", "object", "abc.ABC", "typing.NamedTuple", "typing.Protocol",
    "typing.Generic", "enum.Enum", "enum.IntEnum", "enum.StrEnum", "dict", "list", "tuple", "str", "int",
    "typing.TypedDict", "Exception", "contextlib.ContextDecorator", "collections.UserDict",
}  # fmt: skip


def plain_base(base: Value) -> bool:
    """A base class that computes nothing by itself."""
    return isinstance(base, Unknown | Const) or (isinstance(base, Lib) and base.path in _PLAIN_BASES)


def union(*values: Value) -> Value:
    """One of them; equal ones are one, and plain values are left out beside what may compute."""
    flat = list[Value]()
    for value in values:
        for one in value.options if isinstance(value, Union) else [value]:
            if all(one is not other and one != other for other in flat):
                flat.append(one)
    if UNKNOWN in flat:  # it may be any plain value, so no plain value is known
        flat = [one for one in flat if not isinstance(one, Unknown | Const)] or [UNKNOWN]
    if len(flat) > 24:  # more than anybody can follow
        return Opaque("too many possible values")
    return flat[0] if len(flat) == 1 else Union(flat)


def merged(tensors: list[Tensor]) -> Tensor:
    """A tensor that is made from all of them."""
    pending = {one.node: one for tensor in tensors for one in tensor.pending}
    return Tensor(max((t.level for t in tensors), key=_ORDER.index), tuple(pending.values())[:16])


def view(tensor: Tensor) -> Tensor:
    """The same data, seen otherwise."""
    return Tensor(tensor.level, tensor.pending, tensor)


def tensors_in(values: list[Value], depth: int = 4) -> list[Tensor]:
    """All tensors in values and in what they contain."""
    found = list[Tensor]()
    for value in values:
        match value:
            case Tensor():
                found.append(value)
            case Seq(items=inner) if depth:
                found += tensors_in(inner, depth - 1)
            case Mapping() if depth:
                found += tensors_in(value.all(), depth - 1)
            case Union(options=inner) if depth:
                found += tensors_in(inner, depth - 1)
            case Instance(attributes=names) if depth and not is_module(value):
                found += tensors_in(list(names.values()), depth - 1)
    return found


def is_module(value: Instance) -> bool:
    """Whether an object of the file is a torch.nn.Module."""
    return any(isinstance(one, Lib) and one.path.startswith("torch.nn.") for one in value.cls.order())


def options_of(value: Value) -> list[Value]:
    """What a value may be."""
    return value.options if isinstance(value, Union) else [value]


def quoted(node: ast.AST) -> str:
    """A piece of source as a finding names it; of a long one its kind only, for each may hold many others."""
    last, first = getattr(node, "end_col_offset", None) or 0, getattr(node, "col_offset", 0)
    if getattr(node, "end_lineno", 0) != getattr(node, "lineno", 0) or last - first > _WRITTEN_OUT:
        return f"{_KINDS.get(type(node), 'an expression')} over {_extent(node)}"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _extent(node: ast.AST) -> str:
    lines = (getattr(node, "end_lineno", 0) or 0) - getattr(node, "lineno", 0) + 1
    return f"{lines} lines" if lines > 1 else "a long line"
