"""In the referee: executing a foreign file, and collecting the calls that it is an example of."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from atrex.foreign.literal import Unencodable, encode
from atrex.foreign.messages import Source
from atrex.foreign.spec import Entry

SEPARATOR = re.compile(r"^#{40,}\s*$", re.MULTILINE)
MAX_CALLS = 16


class BadReference(Exception):
    """The file is not a reference in a form that is known; the message says what is missing."""


@dataclass(slots=True)
class Example:
    """Arguments of one example call, written down."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: dict[str, Tensor]


@dataclass(slots=True)
class Loaded:
    """An executed reference."""

    entry: Entry
    build: Callable[[], Any]  # the callable; a module is constructed anew, under its seed
    examples: list[Example] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def load(source: Source) -> Loaded:
    """Execute a reference and collect its example calls. Raises BadReference, or what the file raises."""
    for name, text in source.beside.items():
        _execute(text, name)
    style = source.style if source.style != "auto" else _style(source.text)
    if style == "tested":
        return _tested(source)
    if style == "arrays":
        return _arrays(source)
    module = _execute(source.text, "reference")
    get_inputs = getattr(module, "get_inputs", None)
    if not callable(get_inputs):
        raise BadReference("it has no get_inputs() that returns example inputs")
    torch.manual_seed(42)
    loaded = _model(module, source) if style == "module" else _function(module, source)
    signature = loaded.build().forward if style == "module" else loaded.build()
    torch.manual_seed(42)
    inputs = get_inputs()
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (tuple(inputs), {})
    loaded.examples.append(_example(signature, args, kwargs))
    return loaded


def _style(text: str) -> str:
    if SEPARATOR.search(text) and re.search(r"^def test_", text, re.MULTILINE):
        return "tested"
    return "module" if re.search(r"^class Model\b", text, re.MULTILINE) else "function"


def _execute(text: str, name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__file__ = f"{name}.py"
    sys.modules[name] = module
    exec(compile(text, f"{name}.py", "exec"), module.__dict__)
    return module


def _model(module: types.ModuleType, source: Source) -> Loaded:
    model = getattr(module, "Model", None)
    if not (isinstance(model, type) and issubclass(model, torch.nn.Module)):
        raise BadReference("it defines no class Model(torch.nn.Module)")
    given: Any = getattr(module, "get_init_inputs", list)()
    keywords: dict[str, Any] = {}
    if isinstance(given, list | tuple) and len(given) == 2 and given[0] == [] and isinstance(given[1], dict):
        given, keywords = [], given[1]  # KernelBench's form for arguments by keyword
    elif isinstance(given, dict):
        given, keywords = [], given
    init = list(given)
    nodes = _literals([*init, *keywords.values()], "get_init_inputs()")
    named = dict(zip(keywords, nodes[len(init) :], strict=True))
    entry = Entry(kind="model", name="Model", init=nodes[: len(init)], keywords=named)

    def build() -> Any:
        torch.manual_seed(entry.seed)
        return model(*init, **keywords)

    return Loaded(entry, build)


def _literals(values: list[Any], what: str) -> tuple[Any, ...]:
    tensors: dict[str, Tensor] = {}
    try:
        nodes = tuple(encode(value, what, tensors) for value in values)
    except Unencodable as error:
        raise BadReference(str(error)) from None
    if tensors:
        raise BadReference(f"{what} returns tensors")
    return nodes


def _function(module: types.ModuleType, source: Source) -> Loaded:
    helpers = {"get_inputs", "get_init_inputs", "main"}
    found = [
        value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name not in helpers
    ]
    public = [f for f in found if not f.__name__.startswith("_")]
    wanted = [f for f in public if f.__name__ == (source.name or "reference")] or public
    if len(wanted) != 1:
        names = ", ".join(f.__name__ for f in public) or "none"
        raise BadReference(f"which function is the reference? found: {names}; call it `reference`")
    return Loaded(Entry(kind="function", name=wanted[0].__name__), lambda: wanted[0])


def _tested(source: Source) -> Loaded:
    """A function of the file's name above the separator; its calls below are recorded while a test runs."""
    head, _, tests = _split(source.text)
    if "def test_" not in tests:
        raise BadReference("below its line of # no test_ function calls it")
    module = _execute(head, "reference")
    names = [source.name, *re.findall(r"^def test_(\w+)", tests, re.MULTILINE), "kernel_function"]
    function = next((vars(module)[name] for name in names if callable(vars(module).get(name))), None)
    if function is None:
        raise BadReference(f"it defines no function {names[0] or names[1]!r} above its line of #")
    loaded = Loaded(Entry(kind="function", name=function.__name__), lambda: function)
    seen = set[str]()

    def recorded(*args: Any, **kwargs: Any) -> Any:
        try:
            example = _example(function, args, kwargs)
            key = (
                f"{example.args}{example.kwargs}{[(n, t.shape, t.dtype) for n, t in example.tensors.items()]}"
            )
            if key not in seen and len(seen) < MAX_CALLS:
                loaded.examples.append(example)
            elif key not in seen:
                loaded.skipped.append(f"more than {MAX_CALLS} different calls")
            seen.add(key)
        except Unencodable as error:
            loaded.skipped.append(str(error))
        return function(*args, **kwargs)

    names_of_it = [name for name, value in vars(module).items() if value is function]
    module.__dict__.update(dict.fromkeys(names_of_it, recorded))
    torch.manual_seed(42)
    try:
        exec(compile(tests, "tests.py", "exec"), module.__dict__)
    except Exception as error:
        if not loaded.examples:
            raise
        loaded.skipped.append(f"its test stops: {type(error).__name__}: {error}"[:200])
    module.__dict__.update(dict.fromkeys(names_of_it, function))
    if not loaded.examples:
        raise BadReference("; ".join(dict.fromkeys(loaded.skipped)) or "its test does not call it")
    return loaded


def _split(text: str) -> tuple[str, str, str]:
    found = SEPARATOR.search(text)
    if found is None:
        raise BadReference("it has no line of # between function and test")
    return text[: found.start()], found.group(), text[found.end() :]


def _arrays(source: Source) -> Loaded:
    """A script that reads arrays, computes in fp64 and emits one array: its reading and emitting is ours."""
    taken: dict[str, Any] = {}

    def kit(inputs: Mapping[str, Any]) -> types.ModuleType:
        module = types.ModuleType("_refkit")
        module.__dict__.update(
            read_inputs=lambda: (dict(inputs), {}), emit=lambda array: taken.update(out=array)
        )
        return module

    sys.modules["_refkit"] = kit({})
    module = _execute(source.text, "reference")
    if not callable(getattr(module, "main", None)):
        raise BadReference("it defines no main() that computes the reference")

    def function(**tensors: Tensor) -> Tensor:
        arrays = {name: tensor.cpu().numpy() for name, tensor in tensors.items()}
        vars(module).update({k: v for k, v in vars(kit(arrays)).items() if not k.startswith("__")})
        taken.clear()
        module.main()
        if "out" not in taken:
            raise BadReference("its main() emits nothing")
        first = next(iter(tensors.values()))
        return torch.as_tensor(taken["out"]).to(first.dtype).to(first.device)

    loaded = Loaded(Entry(kind="arrays", name="run"), lambda: function)
    dtype: torch.dtype = getattr(torch, source.dtype)
    for number, shapes in enumerate(source.arrays):
        generator = torch.Generator().manual_seed(number)
        tensors = {n: torch.randn(s, generator=generator).to(dtype) for n, s in shapes.items()}
        kwargs = {name: {"tensor": name} for name in tensors}
        loaded.examples.append(Example((), kwargs, tensors))
    return loaded


def _example(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Example:
    """One call, with tensors named as the function names its parameters. Raises Unencodable."""
    names = list[str]()
    with contextlib.suppress(TypeError, ValueError):
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
                names.append(parameter.name)
    tensors: dict[str, Tensor] = {}
    nodes = tuple(
        encode(arg, names[i] if i < len(names) else f"arg{i}", tensors) for i, arg in enumerate(args)
    )
    named = {name: encode(value, name, tensors) for name, value in kwargs.items()}
    return Example(nodes, named, {name: t.detach().clone() for name, t in tensors.items()})
