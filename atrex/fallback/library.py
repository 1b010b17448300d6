"""What calls of libraries do: transform a function, make a kernel, prepare, compute."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from atrex.fallback import native, operations
from atrex.fallback.tables import (
    COMPILERS,
    CONTAINERS,
    KERNEL_MAKERS,
    KNOWN_OPS,
    LIBRARIES,
    LOADERS,
    NUMPY_SETUP,
    RAW_KERNELS,
    TRANSFORMS,
    WRAPPERS,
)
from atrex.fallback.transforms import (
    Args,
    Keywords,
    compiled,
    impl,
    kernel,
    partial,
    property_,
    register,
    text,
    wrapped,
)
from atrex.fallback.values import (
    UNKNOWN,
    Builtin,
    Class,
    Const,
    Function,
    Instance,
    Lazy,
    Lib,
    LibObject,
    Mapping,
    Opaque,
    Partial,
    Scope,
    Seq,
    Tensor,
    Union,
    Value,
    merged,
    options_of,
    tensors_in,
    union,
    view,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader


def call(r: Reader, path: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """A call of a library's function or class by its dotted path."""
    root, _, rest = path.partition(".")
    given = [*args, *keywords.values()]
    if path in KERNEL_MAKERS:
        return kernel(r, path, args, node)
    if path in LOADERS:
        return Opaque(path)
    if path in ("weakref.ref", "weakref.proxy", "weakref.WeakMethod") and args:
        return Builtin(lambda _args, _keywords, _node: args[0]) if path != "weakref.proxy" else args[0]
    if path == "types.ModuleType":
        return Instance(Class("module", [], Scope({}), 0))
    if path == "functools.singledispatch" and args:
        return Partial(Union(list(args[:1])), through="")
    if path in RAW_KERNELS:
        return r.define(text(args[1:2]) or "raw kernel", node, python=False)
    if path in WRAPPERS:
        return wrapped(path, args)
    if path in COMPILERS or path in TRANSFORMS:
        return compiled(path, args, keywords)
    handler = _SPECIAL.get(path)
    if handler is not None:
        return handler(r, args, keywords, node)
    if root == "builtins":
        return _builtin(r, rest, args, keywords, node)
    if root == "torch":
        return _torch(r, rest, args, keywords, node)
    if root == "numpy":
        return _numpy(r, rest, given, node)
    if root == "operator":
        return _operator(r, rest, args, node)
    if root in ("triton", "atrex", "numba", "pycuda") or root in sys.stdlib_module_names:
        if root == "triton" and rest.startswith("ops."):
            return r.compute(path, tensors_in(given), node)
        return _plain_call(r, path, args, keywords, node)
    if root == "einops" and rest in ("rearrange", "repeat", "parse_shape"):
        return view(merged(tensors_in(given))) if tensors_in(given) else UNKNOWN
    if root in LIBRARIES or root == "einops":
        if tensors_in(given):
            return r.compute(path, tensors_in(given), node)
        return LibObject(path) if rest.rpartition(".")[2][:1].isupper() else UNKNOWN
    if tensors_in(given):
        r.report("unresolved", path, node, reason="a module that is not known")
        return Tensor("data")
    return Opaque(f"what {path} gives", mild=True)


def _torch(r: Reader, rest: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    from atrex.fallback.calls import method

    given = [*args, *keywords.values()]
    tensors, parts = tensors_in(given), rest.split(".")
    last = parts[-1]
    if parts[0] == "ops" and len(parts) >= 3:
        known = r.registered.get(f"{parts[1]}::{parts[2]}")
        if known is not None:
            return r.call(known, args, keywords, node)
        if parts[1] not in KNOWN_OPS:
            r.report("unresolved", f"torch.{rest}", node, reason="an operator that the file does not define")
            return Tensor("data")
    if parts[0] == "Tensor" and len(parts) == 2 and tensors:
        return method(r, tensors[0], last, args[1:], keywords, node)
    if rest in ("ops.load_library", "classes.load_library"):
        r.report("unresolved", f"torch.{rest}", node, reason="operators of a library of another file")
        return UNKNOWN
    if rest == "library.Library":
        return LibObject("torch.library.Library", text(args[:1]))
    if parts[0] == "nn" and parts[1:2] != ["functional"] and last[:1].isupper():
        return _nn(r, rest, args, keywords)
    if rest == "nn.functional.pad" and not tensors:
        return UNKNOWN
    kind = operations.classify_function(rest)
    if kind == "compute":
        if not tensors and not any(isinstance(one, Opaque | Seq) for one in given):
            return Tensor("constant")
        result = r.compute(f"torch.{rest}", tensors, node)
        for out in options_of(keywords.get("out", UNKNOWN)):
            if isinstance(out, Tensor):
                out.fill()
        return result
    base = last.removeprefix("new_")
    if base.startswith("empty"):
        return Tensor("data")
    if kind == "glue" and base not in (
        "clone",
        "contiguous",
        "to",
        "copy_",
        "as_tensor",
        "tensor",
        "asarray",
    ):
        return Tensor("constant")
    if tensors:
        if base in ("split", "chunk", "tensor_split", "broadcast_tensors"):
            return Seq([view(merged(tensors))] * 2)
        return view(tensors[0]) if len(tensors) == 1 else merged(tensors)
    if kind == "glue" or base in ("from_numpy", "frombuffer", "load"):
        return Tensor("constant")
    return LibObject(f"torch.{rest}") if last[:1].isupper() else UNKNOWN


def _nn(r: Reader, rest: str, args: Args, keywords: Keywords) -> Value:
    """A module of torch.nn: an object that computes when it is called."""
    path = f"torch.{rest}"
    if path in CONTAINERS:
        return args[0] if args else Seq([])
    if path == "torch.nn.ModuleDict":
        return args[0] if args else Mapping({})
    if path == "torch.nn.Sequential":
        stages = list(args)

        def through(inner: Args, _keywords: Keywords, node: ast.AST) -> Value:
            value = inner[0] if inner else UNKNOWN
            for stage in stages:
                value = r.call(stage, [value], {}, node)
            return value

        return Builtin(through)
    if path == "torch.nn.Identity":
        return Builtin(lambda inner, _keywords, _node: inner[0] if inner else UNKNOWN)
    return LibObject(path)


def call_object(r: Reader, owner: LibObject, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """Calling an object of a library: a module of torch.nn computes."""
    tensors = tensors_in([*args, *keywords.values()])
    if owner.path.startswith("torch.nn."):
        return r.compute(owner.path, tensors, node)
    if tensors and owner.path.partition(".")[0] in LIBRARIES:
        return r.compute(owner.path, tensors, node)
    return merged(tensors) if tensors else UNKNOWN


def method_of_object(
    r: Reader, owner: LibObject, name: str, args: Args, keywords: Keywords, node: ast.AST
) -> Value:
    """A method of an object of a library; executors and threads run what they are given."""
    if name in ("to", "cuda", "eval", "half", "bfloat16", "float", "train", "requires_grad_", "double"):
        return owner
    tensors = tensors_in([*args, *keywords.values()])
    if tensors and owner.path.partition(".")[0] in LIBRARIES:
        return r.compute(f"{owner.path}.{name}", tensors, node)
    if name in ("submit", "map", "apply_async", "run", "call_soon", "starmap", "apply") and args:
        return _run_given(r, args[0], list(args[1:]), node)
    if name in ("forward", "__call__"):
        return call_object(r, owner, args, keywords, node)
    if owner.path == "torch.library.Library":
        if name == "impl" and len(args) > 1:
            r.registered[f"{owner.name}::{text(args[:1]).partition('.')[0]}"] = args[1]
        return UNKNOWN
    if tensors and owner.path.startswith("torch.nn."):
        return r.compute(f"{owner.path}.{name}", tensors, node)
    return UNKNOWN


def _run_given(r: Reader, function: Value, args: Args, node: ast.AST) -> Value:
    items = [one.items[0] if isinstance(one, Seq) and one.items else one for one in args]
    return r.call(function, items, {}, node)


def _numpy(r: Reader, rest: str, given: Args, node: ast.AST) -> Value:
    tensors = tensors_in(given)
    if not tensors:
        return Tensor("constant") if rest.partition(".")[0] not in ("dtype", "iinfo", "finfo") else UNKNOWN
    if rest.partition(".")[0] in NUMPY_SETUP:
        return view(merged(tensors))
    return r.compute(f"numpy.{rest}", tensors, node)


def _operator(r: Reader, rest: str, args: Args, node: ast.AST) -> Value:
    """The functions of `operator`, by name or made to order."""
    from atrex.fallback.attributes import attribute
    from atrex.fallback.expressions import item

    if rest == "methodcaller" and args:
        name = text(args[:1])
        if not name:
            return Opaque("operator.methodcaller of a computed name")

        def called(inner: Args, _keywords: Keywords, where: ast.AST) -> Value:
            return (
                r.call(attribute(r, inner[0], name, where), list(args[1:]), {}, where) if inner else UNKNOWN
            )

        return Builtin(called)
    if rest == "attrgetter" and args:
        path = text(args[:1]).split(".")
        if path == [""]:
            return Opaque("operator.attrgetter of a computed name")

        def got(inner: Args, _keywords: Keywords, where: ast.AST) -> Value:
            value = inner[0] if inner else UNKNOWN
            for name in path:
                value = attribute(r, value, name, where)
            return value

        return Builtin(got)
    if rest in ("getitem", "itemgetter") and len(args) > 1:
        return item(r, args[0], args[1], node)
    tensors = [one for value in args for one in options_of(value) if isinstance(one, Tensor)]
    return r.compute(f"operator.{rest}", tensors, node) if tensors else UNKNOWN


def _builtin(r: Reader, name: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    from atrex.fallback import pythonic

    return pythonic.call(r, name, args, keywords, node)


def _plain_call(r: Reader, path: str, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """The standard library and Triton's host side: what they are given to run is run."""
    if path.endswith(("Thread", "Process", "Timer")):
        target = keywords.get("target", args[1] if len(args) > 1 else UNKNOWN)
        inner = keywords.get("args", Seq([]))
        r.call(target, inner.items if isinstance(inner, Seq) else [], {}, node)
        return LibObject(path)
    if path.startswith("ctypes.") and path.endswith(("CDLL", "LoadLibrary", "PyDLL", "WinDLL")):
        return Opaque(path)
    if path in ("triton.cdiv", "triton.next_power_of_2"):
        return UNKNOWN
    for one in args:
        if isinstance(one, Lazy):  # asyncio.run and the like
            return union(*(one.force() or [UNKNOWN]))
    last = path.rpartition(".")[2]
    if path in ("collections.OrderedDict", "collections.defaultdict", "collections.ChainMap"):
        held = [one for one in args if isinstance(one, Mapping)]
        makers = [one for one in args[:1] if isinstance(one, Function | Lib | Partial)]
        return Mapping(
            {key: value for one in held for key, value in one.items.items()},
            [r.call(one, [], {}, node) for one in makers if path.endswith("defaultdict")],
        )
    if path == "collections.namedtuple":
        return UNKNOWN
    if path.partition(".")[0] in ("itertools", "collections", "more_itertools", "copy"):
        found = [one for value in args for one in (value.items if isinstance(value, Seq) else [])]
        return Seq(found or list(args))
    return LibObject(path) if last[:1].isupper() else UNKNOWN


def _reduce(r: Reader, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    from atrex.fallback.expressions import elements

    if len(args) < 2:
        return UNKNOWN
    items = elements(r, args[1]) or [UNKNOWN]
    value = args[2] if len(args) > 2 else items[0]
    for one in items[1:] or items:
        value = r.call(args[0], [value, one], {}, node)
    return value


def _import_module(r: Reader, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    name = text(args[:1])
    if name:
        return Lib(name)
    r.report("unresolved", "importlib.import_module of a computed name", node)
    return Opaque("importlib.import_module of a computed name")


def _decoded(r: Reader, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    """base64 of a text that is known: the text."""
    import base64
    import binascii

    known = args[0].value if args and isinstance(args[0], Const) else None
    if isinstance(known, str | bytes) and len(known) < 1 << 16:
        try:
            return Const(base64.b64decode(known))
        except (binascii.Error, ValueError):
            return UNKNOWN
    return UNKNOWN


def _dedented(r: Reader, args: Args, keywords: Keywords, node: ast.AST) -> Value:
    import textwrap

    return Const(textwrap.dedent(text(args))) if text(args[:1]) else UNKNOWN


_SPECIAL: dict[str, Callable[[Reader, Args, Keywords, ast.AST], Value]] = {
    "functools.partial": partial, "functools.partialmethod": partial, "functools.reduce": _reduce,
    "functools.cached_property": property_, "importlib.import_module": _import_module,
    "torch.library.custom_op": register, "torch.library.triton_op": register, "torch.library.impl": impl,
    "torch.library.register_kernel": impl, "base64.b64decode": _decoded,
    "textwrap.dedent": _dedented, "inspect.cleandoc": _dedented,
    "torch.utils.cpp_extension.load_inline": native.load_inline, "atrex.dsl.cpp.compile": native.compiled,
    "cupy.RawModule": native.raw_module,
}  # fmt: skip
