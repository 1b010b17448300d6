"""Calls: of what the file defines, of kernels, of methods of tensors and containers."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from atrex.fallback import attributes, library, operations, transforms
from atrex.fallback.values import (
    NONE,
    UNKNOWN,
    Bound,
    Builtin,
    Class,
    Const,
    Function,
    Instance,
    Kernel,
    Launcher,
    Lazy,
    Lib,
    LibObject,
    Mapping,
    Method,
    Native,
    Opaque,
    Partial,
    Scope,
    Seq,
    Tensor,
    Union,
    Value,
    is_module,
    tensors_in,
    union,
    view,
)

if TYPE_CHECKING:
    from atrex.fallback.reader import Reader


_LONGEST = 1 << 16  # of a folded string
_SEPARATOR = 64


def call(r: Reader, function: Value, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
    """What a call gives."""
    match function:
        case Union(options=options):
            return union(*(r.call(one, args, keywords, node) for one in options))
        case Function():
            return _function(r, function, args, keywords, node)
        case Method(function=inner, first=first):
            return _function(r, inner, [first, *args], keywords, node)
        case Class():
            return _instantiate(r, function, args, keywords, node)
        case Instance():
            return _object(r, function, args, keywords, node)
        case Partial():
            return _partial(r, function, args, keywords, node)
        case Launcher(kernel=kernel, empty=empty):
            if not empty:
                r.launch(kernel, [*args, *keywords.values()])
            return UNKNOWN
        case Kernel(python=False):  # a raw kernel: called with grid, block, arguments
            r.launch(function, [*args, *keywords.values()])
            return UNKNOWN
        case Builtin():
            return function.call(args, keywords, node)
        case Bound():
            return _bound(r, function, args, keywords, node)
        case Lib():
            patched = r.patched.get(function.path)
            if patched is not None and patched != function:
                return r.call(patched, args, keywords, node)
            return library.call(r, function.path, args, keywords, node)
        case LibObject():
            return library.call_object(r, function, args, keywords, node)
        case Opaque(how=how, mild=mild):
            given = tensors_in([*args, *keywords.values()])
            if given or not mild:
                r.report("unresolved", f"a call of {how}", node)
            return Tensor("data") if given else function
    if tensors_in([*args, *keywords.values()]) and r.live and isinstance(node, ast.Call):
        r.strange.append(node)
    return UNKNOWN


def _function(
    r: Reader, function: Function, args: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    """Read the body with these arguments. A function that is already being read twice gives nothing new."""
    if _is_lazy(function.node):
        return Lazy(lambda: _body(r, function, args, keywords, node))
    found = _body(r, function, args, keywords, node)
    return union(*found or [NONE])


def _is_lazy(node: ast.AST) -> bool:
    """Whether a call only makes a generator or a coroutine."""
    if isinstance(node, ast.AsyncFunctionDef):
        return True
    pending = list(ast.iter_child_nodes(node)) if isinstance(node, ast.FunctionDef) else []
    while pending:
        inner = pending.pop()
        if isinstance(inner, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(inner)
    return False


def _body(
    r: Reader, function: Function, args: list[Value], keywords: dict[str, Value], node: ast.AST
) -> list[Value]:
    """What the body yields, or else returns."""
    from atrex.fallback.reader import Frame

    if r.active.count(id(function.node)) > 1:
        return [UNKNOWN]
    scope = Scope(_bind(function, args, keywords), function.scope)
    if function.owner is not None:
        scope.names["__class__"] = function.owner
        if args:
            scope.names["__self__"] = args[0]
    owner = f"{function.owner.name}." if function.owner is not None else ""
    frame = Frame(f"{owner}{function.name}", getattr(node, "lineno", 0))
    r.frames.append(frame)
    r.active.append(id(function.node))
    try:
        if isinstance(function.node, ast.Lambda):
            return [r.evaluate(function.node.body, scope)]
        r.run(function.node.body, scope)
    finally:
        r.frames.pop()
        r.active.pop()
    return frame.yields if frame.is_generator else frame.returns


def _bind(function: Function, args: list[Value], keywords: dict[str, Value]) -> dict[str, Value]:
    spec = function.node.args
    positional = [one.arg for one in (*spec.posonlyargs, *spec.args)]
    bound: dict[str, Value] = dict(zip(positional, args, strict=False))
    if spec.vararg:
        bound[spec.vararg.arg] = Seq(list(args[len(positional) :]))
    known = {*positional, *(one.arg for one in spec.kwonlyargs)}
    rest: dict[object, Value] = {}
    for name, value in keywords.items():
        if name in known:
            bound.setdefault(name, value)
        else:
            rest[name] = value
    if spec.kwarg:
        bound[spec.kwarg.arg] = Mapping(rest)
    for name in known:
        bound.setdefault(name, function.defaults.get(name, UNKNOWN))
    return bound


def _instantiate(
    r: Reader, cls: Class, args: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    made = Instance(cls)
    if any(isinstance(one, Lib) and one.path in _DICTS for one in cls.order()):
        made.attributes["__data__"] = args[0] if args else Mapping(dict(keywords.items()))
    if Lib("torch.Tensor") in cls.order():
        routed(r, cls, node)
        return Tensor("data")
    found = cls.find("__new__")
    if isinstance(found, Function):
        result = r.call(found, [cls, *args], keywords, node)
        made = result if isinstance(result, Instance) else made
    found = cls.find("__init__")
    if isinstance(found, Function):
        r.call(found, [made, *args], keywords, node)
        return made
    fields = [name for name, value in cls.scope.names.items() if not isinstance(value, Function)]
    made.attributes |= dict(zip(fields, args, strict=False)) | keywords  # a dataclass, a named tuple
    post = cls.find("__post_init__")
    if isinstance(post, Function):
        r.call(post, [made], {}, node)
    return made


_DICTS = ("builtins.dict", "collections.UserDict", "collections.OrderedDict", "collections.defaultdict")


def routed(r: Reader, holder: Class | Instance, node: ast.AST) -> None:
    """What a subclass of Tensor or a mode makes of the operations that go through it."""
    cls = holder.cls if isinstance(holder, Instance) else holder
    for name in ("__torch_function__", "__torch_dispatch__"):
        found = cls.find(name)
        if isinstance(found, Function):
            given: list[Value] = [UNKNOWN, UNKNOWN, Seq([Tensor("data"), Tensor("data")]), NONE]
            r.call(found, [holder, *given], {}, node)


def _object(
    r: Reader, instance: Instance, args: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    names = ("forward", "__call__") if is_module(instance) else ("__call__",)
    for name in names:
        found = instance.cls.find(name)
        if found is not None:
            result = r.call(attributes.bound(found, instance), args, keywords, node)
            return run_hooks(r, instance, result, node)
        if name in instance.attributes:
            return r.call(instance.attributes[name], args, keywords, node)
    return UNKNOWN


def run_hooks(r: Reader, instance: Instance, result: Value, node: ast.AST) -> Value:
    """What the hooks of a module make of its result."""
    hooks = instance.attributes.get("__hooks__")
    for hook in hooks.items if isinstance(hooks, Seq) else []:
        result = union(r.call(hook, [instance, Seq([result]), result], {}, node), result)
    return result


def _partial(
    r: Reader, partial: Partial, args: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    if isinstance(partial.function, Native):
        return _native(r, partial.function, partial.through, [*args, *keywords.values()], node)
    before = r.computed
    result = r.call(partial.function, [*partial.args, *args], {**partial.keywords, **keywords}, node)
    if partial.through and r.computed > before:
        r.report("compute", partial.through, node, reason="a compiler makes the kernels")
    return result


def _native(r: Reader, module: Native, name: str, args: list[Value], node: ast.AST) -> Value:
    """A function of C++ or CUDA: its own kernel, or a library called from there, or both."""
    for operation in module.library:
        r.report("compute", operation, node, reason=f"the C++ or CUDA source behind {name} calls a library")
    if module.kernel is not None:
        r.launch(module.kernel, args)
    return Tensor("data")


def _bound(r: Reader, bound: Bound, args: list[Value], keywords: dict[str, Value], node: ast.AST) -> Value:
    owner, name = bound.owner, bound.name
    match owner:
        case Tensor():
            return method(r, owner, name, args, keywords, node)
        case Kernel():
            if name == "run" and not _is(keywords.get("warmup"), True):
                r.launch(owner, [*args, *keywords.values()])
            return UNKNOWN
        case Class() if name == "apply":
            return _apply(r, owner, args, node)
        case Const(value=str() | bytes()):
            return _of_text(owner, name, args)
        case Seq() | Mapping():
            return _of_container(owner, name, args)
        case Lib(path=path):  # a method that a library's base class has
            if name in ("__init__", "__init_subclass__", "__new__", "register_buffer"):
                return UNKNOWN
            r.report("compute", f"{path}.{name}", node, reason="inherited from a library")
            return Tensor("data")
        case Function() | Method() | Partial():
            return transforms.of_callable(r, owner, name, args, keywords, node)
        case LibObject():
            return library.method_of_object(r, owner, name, args, keywords, node)
    return UNKNOWN


def _is(value: Value | None, wanted: bool) -> bool:
    return isinstance(value, Const) and value.value is wanted


def _apply(r: Reader, cls: Class, args: list[Value], node: ast.AST) -> Value:
    """The forward of an autograd function; its backward is not reached."""
    found = cls.find("forward")
    if not isinstance(found, Function):
        return UNKNOWN
    context: list[Value] = [] if cls.find("setup_context") is not None else [UNKNOWN]
    return r.call(found, [*context, *args], {}, node)


def method(
    r: Reader, tensor: Tensor, name: str, args: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    """A method of a tensor."""
    others = tensors_in([*args, *keywords.values()])
    if name == "as_subclass":
        for one in args:
            if isinstance(one, Class):
                routed(r, one, node)
        return view(tensor)
    if name in operations.TO_HOST:
        tensor.pending = ()
        return view(tensor) if name in ("cpu", "numpy") else UNKNOWN
    added = r.patched.get(f"torch.Tensor.{name}")
    if added is not None:
        return r.call(added, [tensor, *args], keywords, node)
    kind = operations.classify_method(name)
    if kind == "compute":
        if name in ("apply_", "map_", "map2_") and args:
            r.call(args[0], [UNKNOWN], {}, node)
        result = r.compute(f"torch.Tensor.{name}", [tensor, *others], node)
        if name.endswith("_") and not name.startswith("_"):
            tensor.level, tensor.pending = result.level, result.pending
        return result
    if kind == "glue" and others:
        r.promote([*others] if name != "type_as" else [])
        if name.endswith("_"):
            tensor.fill()
    if name in _NO_TENSOR:
        return UNKNOWN
    if name.startswith("new_"):
        return Tensor("data" if "empty" in name else "constant")
    if name in ("split", "chunk", "unbind", "split_with_sizes", "tensor_split", "hsplit", "vsplit", "dsplit"):
        return Seq([view(tensor)] * 2) if name != "unbind" else view(tensor)
    return view(tensor)


_NO_TENSOR = operations.names(
    """size stride dim numel nelement ndimension element_size storage_offset data_ptr is_contiguous
    is_floating_point is_complex is_signed get_device is_pinned record_stream untyped_storage storage
    is_set_to backward register_hook has_names is_shared"""
)


def _of_text(owner: Const, name: str, args: list[Value]) -> Value:
    """A method of a string, carried out if all is known: names are put together so."""
    plain = [one.value for one in args if isinstance(one, Const)]
    if name == "join" and len(args) == 1 and isinstance(args[0], Seq) and isinstance(owner.value, str):
        parts = [one.value for one in args[0].items if isinstance(one, Const) and isinstance(one.value, str)]
        whole = len(parts) == len(args[0].items) and sum(map(len, parts)) <= _LONGEST
        return Const(owner.value.join(parts)) if whole and len(owner.value) <= _SEPARATOR else UNKNOWN
    sizes = [len(one) for one in (owner.value, *plain) if isinstance(one, str | bytes)]
    if (
        len(plain) != len(args)
        or max(sizes) > _LONGEST
        or (name == "replace" and sizes[0] * sizes[-1] > _LONGEST)
    ):
        return UNKNOWN
    if name not in ("lower", "upper", "replace", "strip", "lstrip", "rstrip", "encode", "decode",
                    "title", "capitalize", "swapcase", "removeprefix", "removesuffix", "hex"):  # fmt: skip
        return UNKNOWN
    try:
        result = getattr(owner.value, name)(*plain)
    except Exception:  # noqa: BLE001 - whatever it raises, it would raise there, too
        return UNKNOWN
    return Const(result) if isinstance(result, str | bytes) and len(result) <= _LONGEST else UNKNOWN


def _of_container(owner: Seq | Mapping, name: str, args: list[Value]) -> Value:
    """A method of a list or dict."""
    if isinstance(owner, Seq):
        if name in ("append", "add", "appendleft", "insert"):
            owner.items += args[-1:]
        elif name in ("extend", "update", "union"):
            owner.items += [one for value in args if isinstance(value, Seq) for one in value.items]
        elif name == "__getitem__" or name.startswith("pop"):
            return union(*owner.items) if owner.items else UNKNOWN
        return owner if name in ("copy", "union") else UNKNOWN
    if name in ("get", "pop", "setdefault", "__getitem__"):
        if args and isinstance(args[0], Const) and args[0].value in owner.items:
            return owner.items[args[0].value]
        if name == "setdefault" and len(args) > 1:
            owner.rest.append(args[1])
        found = [*owner.rest, *args[1:]] if args and isinstance(args[0], Const) else [*owner.all(), *args[1:]]
        return union(*found) if found else NONE
    if name == "update":
        for one in args:
            if isinstance(one, Mapping):
                owner.items |= one.items
                owner.rest += one.rest
        return UNKNOWN
    if name == "values":
        return Seq(owner.all())
    if name == "items":
        keys: list[Value] = [Const(key) if isinstance(key, str | int) else UNKNOWN for key in owner.items]
        pairs = [Seq([key, value]) for key, value in zip(keys, owner.items.values(), strict=True)]
        return Seq([*pairs, *(Seq([UNKNOWN, value]) for value in owner.rest)])
    return owner if name == "copy" else UNKNOWN
