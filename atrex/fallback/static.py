"""The static pass: one file's verdict from its text alone. Nothing is run, and torch is not imported."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from atrex.candidate import read_source
from atrex.errors import UsageError
from atrex.fallback.calls import run_hooks
from atrex.fallback.operations import permitted
from atrex.fallback.reader import Reader
from atrex.fallback.records import FileReport, Finding, KernelSite, Outcome
from atrex.fallback.values import (
    NONE,
    UNKNOWN,
    Class,
    Const,
    Function,
    Instance,
    Kernel,
    Mapping,
    Opaque,
    Partial,
    Scope,
    Seq,
    Tensor,
    TooMuchError,
    Value,
    options_of,
    quoted,
    union,
)
from atrex.strict_yaml import read

BENCH = Path(__file__).parents[2] / "bench"
ENTRIES = ("ModelNew", "Model")
_INDEX_LIKE = re.compile(
    r"cu_?seq|seq_?len|seqused|length|lens\b|(block|page)_?tables?|position|indices|index|slot|_ids?\b|offsets|^idx"
)
_SCALAR_LIKE = re.compile(
    r"^(eps(ilon)?|\w*scale|alpha|beta|gamma_?0|dim|axis|\w*_?size|num_\w+|n_\w+|\w*heads|causal|is_\w+|"
    r"dropout\w*|training|stride|padding|dilation|groups|dtype|device|momentum|top_?k|k_?top|threshold|factor|"
    r"blocks?|normalized_shape|return_\w+|use_\w+|inplace|activation|mode|max_\w+|config)$"
)
_TENSOR_HINT = re.compile(r"Tensor|ndarray")


def analyse(path: Path, *, name: str | None = None, operator: str = "", entry: str = "") -> FileReport:
    """The verdict on a file; one that cannot be read or parsed gets a verdict, too."""
    shown = name or str(path)
    try:
        text = read_source(path)
    except UsageError as error:
        return _broken(shown, str(error).removeprefix(f"{path}: "))
    operator = operator or operator_of(path)
    return analyse_text(text, shown, operator, entry).model_copy(update={"operator": operator})


def analyse_text(text: str, name: str, operator: str = "", entry: str = "") -> FileReport:
    """The same of a text."""
    if "\0" in text:
        return _broken(name, "it has a null byte")
    try:
        tree = ast.parse(text)
        compile(tree, name, "exec", dont_inherit=True)  # finds what a parser does not: a return outside
    except SyntaxError as error:
        return _broken(name, f"it does not parse: {error.msg}", error.lineno or 0, error.offset or 0)
    except (RecursionError, MemoryError, ValueError):
        return _broken(name, "it does not parse: nested too deeply")
    reader = Reader(changing=frozenset(_changing(tree)))
    reader.module.names["__name__"] = Const("candidate")
    try:
        reader.run(tree.body, reader.module)
        found = _entry(reader.module, entry)
        if isinstance(found, str):
            return _broken(name, found)
        _enter(reader, found, _inputs_of(operator))
    except (TooMuchError, RecursionError):
        reason = "larger or deeper than can be followed"
        finding = Finding(kind="unresolved", operation="the whole file", line=1, column=1, reason=reason)
        return FileReport(file=name, verdict=Outcome.UNRESOLVED, reason=reason, findings=(finding,))
    return _verdict(name, reader, tree, _permitted(operator))


def operator_of(path: Path) -> str:
    """The operator that a file is for, by its own name or that of a folder around it; "" if none."""
    known = _operators()
    for part in (path.stem, *(parent.name for parent in path.parents)):
        plain = part.replace("-", "_").lower()
        if plain in known:
            return plain
    return ""


def known_operator(name: str) -> str:
    """The operator of a name in any spelling, without the aliases. Raises UsageError."""
    squeezed = {operator.replace("_", ""): operator for operator in _operators()}
    found = squeezed.get(name.lower().replace("_", "").replace("-", ""))
    if found is None:
        raise UsageError(f"--op {name}: no such operator; `atrex list` names them")
    return found


@cache
def _operators() -> frozenset[str]:
    return frozenset(path.parent.name for path in BENCH.glob("*/problem.yaml"))


@cache
def _problem(operator: str) -> dict[str, dict[str, object]]:
    path = BENCH / operator / "problem.yaml"
    return read(path, _sections) if operator in _operators() else {}


def _sections(data: object) -> dict[str, dict[str, object]]:
    """The mappings of a problem file; `atrex.contract` reads the rest, and needs torch for it."""
    whole = data if isinstance(data, dict) else {}
    return {str(key): value for key, value in whole.items() if isinstance(value, dict)}


def _inputs_of(operator: str) -> dict[str, Value]:
    """Inputs of an operator by name, as `forward` gets them."""
    found: dict[str, Value] = {}
    for name, declared in _problem(operator).get("inputs", {}).items():
        role = declared.get("role") if isinstance(declared, dict) else "data"
        tensor = Tensor("index" if role in ("index", "lengths") else "data")
        optional = isinstance(declared, dict) and declared.get("optional")
        found[name] = union(tensor, NONE) if optional else tensor
    return found


def _permitted(operator: str) -> frozenset[str]:
    """Library calls that the operator's contract allows."""
    allowed = _problem(operator).get("contract", {}).get("library_calls", [])
    return frozenset(str(name) for name in allowed) if isinstance(allowed, list) else frozenset()


def _changing(tree: ast.Module) -> Iterator[str]:
    """Names that functions assign outside their own scope, and attributes assigned after construction."""
    pending: list[tuple[ast.AST, bool]] = [(tree, True)]
    while pending:
        node, first = pending.pop()
        match node:
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                yield from names
            case ast.AugAssign(target=ast.Attribute(attr=name)):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) if not first:
                yield name
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                first = node.name == "__init__"
        pending += [(inner, first) for inner in ast.iter_child_nodes(node)]


def _entry(module: Scope, wanted: str) -> Value | str:
    """What is called first, or why there is nothing."""
    for name in (wanted,) if wanted else ENTRIES:
        found = module.names.get(name)
        if found is not None and not isinstance(found, Const):
            return found
    if wanted:
        return f"it defines no {wanted}"
    if module.stars or any(isinstance(value, Opaque) for value in module.names.values()):
        return Opaque("a Model that the file does not define itself")
    return "it defines no class Model or ModelNew; --entry names another"


def _enter(r: Reader, entry: Value, inputs: dict[str, Value]) -> None:
    """Construct the model, which does not count, and call it, which does."""
    where = ast.Pass(lineno=0, col_offset=0)
    target = entry
    if isinstance(entry, Class):
        where.lineno = entry.line
        target = r.call(entry, [UNKNOWN] * 8 if _wants_positional(entry) else [], {}, where)
    function = _function_of(target)
    args, keywords = _arguments(function, inputs) if function else ([Tensor("data")], {})
    own = [target] if isinstance(target, Instance) and function else []
    with r.reaching(True):
        returned = r.call(function if own and function else target, [*own, *args], keywords, where)
        if isinstance(target, Instance) and own:
            returned = run_hooks(r, target, returned, where)
        r.promote([returned])


def _wants_positional(entry: Class) -> bool:
    found = entry.find("__init__")
    return isinstance(found, Function) and found.node.args.vararg is not None


def _function_of(target: Value) -> Function | None:
    """The function that a call of the entry reaches."""
    for one in options_of(target):
        if isinstance(one, Function):
            return one
        if isinstance(one, Instance):
            for name in ("forward", "__call__"):
                found = one.attributes.get(name) or one.cls.find(name)
                inner = found.function if isinstance(found, Partial) else found
                if isinstance(inner, Function):
                    return inner
    return None


def _arguments(function: Function, inputs: dict[str, Value]) -> tuple[list[Value], dict[str, Value]]:
    """What the entry is called with: by name if the operator is known, else by what the names say."""
    spec = function.node.args
    names = [
        one for one in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs) if one.arg not in ("self", "cls")
    ]
    known = {one.arg for one in names}
    if inputs and (spec.kwarg is not None or set(inputs) <= known):
        return [], dict(inputs)
    guessed = {one.arg: _guess(one, function.defaults.get(one.arg)) for one in names}
    extra = [Tensor("data"), Tensor("data")] if spec.vararg is not None else []
    if extra:
        return [*guessed.values(), *extra], {}
    return [], guessed


def _guess(arg: ast.arg, default: Value | None) -> Value:
    """A tensor, an index tensor or a plain value, by annotation, default and name."""
    annotated = ast.unparse(arg.annotation) if arg.annotation is not None else ""
    tensor = Tensor("index" if _INDEX_LIKE.search(arg.arg) else "data")
    if annotated:
        if not _TENSOR_HINT.search(annotated):
            return default if isinstance(default, Seq | Mapping) else UNKNOWN
        return union(tensor, NONE) if "None" in annotated or "Optional" in annotated else tensor
    if isinstance(default, Const):
        return union(tensor, NONE) if default.value is None else UNKNOWN
    return UNKNOWN if default is not None or _SCALAR_LIKE.match(arg.arg) else tensor


def _verdict(name: str, r: Reader, tree: ast.Module, allowed: frozenset[str]) -> FileReport:
    """Findings, kernels and what they come to."""
    findings = [
        one
        for one in r.findings.values()
        if not (one.kind == "compute" and permitted(one.operation, allowed))
    ]
    compute = [one for one in findings if one.kind == "compute"]
    unresolved = [one for one in findings if one.kind == "unresolved"]
    launched = [kernel for kernel in r.kernels if kernel.launched]
    if not (launched or compute or unresolved):
        unresolved = [_strange(node) for node in r.strange[:4]]
        findings += unresolved
    if launched and compute:
        verdict, reason = Outcome.PARTIAL, f"its own kernels, and {compute[0].operation}"
    elif unresolved and not compute:
        verdict, reason = Outcome.UNRESOLVED, f"{unresolved[0].operation}: {unresolved[0].reason}"
    elif launched:
        verdict, reason = Outcome.KERNEL, "its own kernels"
    elif dead := _without_device_functions(r, tree):
        names = ", ".join(kernel.name for kernel in dead)
        verdict, reason = Outcome.DEAD_KERNEL, f"never launched where it is reached: {names}"
        findings += [_dead(kernel.name, kernel.line) for kernel in dead]
    elif compute:
        verdict, reason = Outcome.FALLBACK, f"no kernel of its own; {compute[0].operation}"
    else:
        verdict, reason = Outcome.FALLBACK, "no kernel of its own, and nothing that computes"
    sites = (KernelSite(name=k.name, line=k.line, launched=k.launched) for k in r.kernels)
    ordered = sorted(findings, key=lambda one: (one.line, one.column))
    return FileReport(
        file=name, verdict=verdict, reason=reason, findings=tuple(ordered), kernels=tuple(sites)
    )


def _strange(node: ast.AST) -> Finding:
    reason = "a call on data of what is not known"
    line, column = max(1, getattr(node, "lineno", 1)), getattr(node, "col_offset", 0) + 1
    called = node.func if isinstance(node, ast.Call) else node
    return Finding(kind="unresolved", operation=quoted(called), line=line, column=column, reason=reason)


def _dead(name: str, line: int) -> Finding:
    reason = "defined, and never launched on a path from the entry"
    return Finding(kind="dead-kernel", operation=name, line=max(1, line), column=1, reason=reason)


def _without_device_functions(r: Reader, tree: ast.Module) -> list[Kernel]:
    """Kernels that no other kernel calls."""
    lines = {kernel.line for kernel in r.kernels}
    if not lines:
        return []
    inside = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.lineno in lines:
            inside |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return [kernel for kernel in r.kernels if kernel.name not in inside]


def _broken(name: str, reason: str, line: int = 0, column: int = 0) -> FileReport:
    finding = Finding(
        kind="broken", operation="the file", line=max(1, line), column=max(1, column), reason=reason
    )
    return FileReport(file=name, verdict=Outcome.BROKEN, reason=reason, findings=(finding,))


def raise_recursion_limit() -> None:
    """Room for expressions of some depth: one level of source takes a few frames here."""
    sys.setrecursionlimit(max(sys.getrecursionlimit(), 6000))
