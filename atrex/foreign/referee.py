"""The process that runs a foreign reference: sandboxed like a candidate, and believed no more.

It answers `atrex.foreign.messages` until the judge closes the channel.
"""

from __future__ import annotations

import copy
import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor

from atrex.arena import ArenaWriter
from atrex.channel import Channel, ChannelClosed
from atrex.foreign.cuda_on_cpu import cuda_on_cpu
from atrex.foreign.literal import decode
from atrex.foreign.loading import BadReference, Example, Loaded, load
from atrex.foreign.messages import Answer, CallInfo, Describe, Evaluate, Mode, TensorInfo
from atrex.foreign.recipe import Recipe, guess, with_example
from atrex.foreign.widen import Magnitudes, Survey, Widened
from atrex.protocol import TensorReport

_EXAMPLES = 2 << 20  # characters of examples that one answer has room for
_REQUEST: TypeAdapter[Any] = TypeAdapter(Describe | Evaluate)


def main(channel: Channel) -> None:
    """Serve one judge; returns when the channel is closed."""
    referee = Referee()
    while True:
        try:
            message, fds = channel.receive()
        except ChannelClosed:
            return
        channel.send(referee.answer(message, fds).model_dump(mode="json"))


class Referee:
    """State of the process: one executed reference."""

    def __init__(self) -> None:
        self.loaded: Loaded
        self.device = torch.device("cpu")
        self.callables: dict[Mode, Callable[..., Any]] = {}
        self.room = _EXAMPLES

    def answer(self, message: Mapping[str, Any], fds: Sequence[int]) -> Answer:
        """One answer to one request; whatever a reference raises is an answer."""
        try:
            request = _REQUEST.validate_python(message)
            if isinstance(request, Describe):
                self.device = torch.device(request.device)
            with cuda_on_cpu(self.device.type == "cpu"), torch.no_grad():
                if isinstance(request, Describe):
                    return self.describe(request)
                return self.evaluate(request, fds)
        except BadReference as error:
            return Answer(failure=str(error)[:500])
        except BaseException as error:  # noqa: BLE001 - foreign code may raise anything at all
            return Answer(failure=" ".join(f"{type(error).__name__}: {error}".split())[:500])

    def describe(self, request: Describe) -> Answer:
        """Execute the file, make every example call, look at each."""
        torch.set_num_threads(request.threads)
        self.loaded = load(request.source)
        calls, skipped = list[CallInfo](), list(self.loaded.skipped)
        for example in self.loaded.examples:
            try:
                calls.append(self._look(example))
            except Exception as error:  # noqa: BLE001 - one call of several
                skipped.append(" ".join(f"{type(error).__name__}: {error}".split())[:200])
        if not calls:
            raise BadReference(f"none of its example calls can be used: {'; '.join(skipped)[:400]}")
        return Answer(entry=self.loaded.entry, calls=tuple(calls), skipped=tuple(dict.fromkeys(skipped)))

    def _look(self, example: Example) -> CallInfo:
        tensors = {name: tensor.to(self.device) for name, tensor in example.tensors.items()}
        given = {name: tensor.clone() for name, tensor in tensors.items()}
        self._callable("eager")  # constructing a module is no part of its function
        torch.manual_seed(1)
        with Survey() as survey:
            raw = self._run("eager", example.args, example.kwargs, given)
        outputs, returns = named_outputs(raw)
        changed = [n for n, t in given.items() if not _same(t, tensors[n])]
        aliases = {n: o for n, t in given.items() for o, v in outputs.items() if _share(t, v)}
        torch.manual_seed(2)
        again, _ = named_outputs(self._run("eager", example.args, example.kwargs, _copies(tensors)))
        random = any(not _same(value, again[name]) for name, value in outputs.items())
        narrow = self._widening(example, tensors)
        return CallInfo(
            args=example.args,
            kwargs=example.kwargs,
            tensors={name: self._drawable(tensor) for name, tensor in tensors.items()},
            returns=returns,
            outputs={name: _info(tensor) for name, tensor in outputs.items()},
            aliases=aliases,
            changed=tuple(changed),
            random=random,
            pointwise=survey.pointwise and survey.compute > 0 and not narrow,
            linear=survey.linear and survey.compute > 0,
            compute=survey.compute,
            reduced=survey.reduced,
            narrow=narrow,
        )

    def _drawable(self, tensor: Tensor) -> TensorInfo:
        """An input with the ways to draw it again, as far as the answer has room for examples."""
        recipes = list[Recipe]()
        for make in (guess, lambda t: with_example(t, "scaled"), lambda t: with_example(t, "example")):
            try:
                recipe = make(tensor)
            except ValueError:
                continue  # too large to be carried
            if len(recipe.data) <= self.room:
                self.room -= len(recipe.data)
                recipes.append(recipe)
        if not recipes:
            raise BadReference(f"an input of {list(tensor.shape)} can be neither drawn nor carried")
        return _info(tensor).model_copy(update={"recipes": tuple(recipes)})

    def _widening(self, example: Example, tensors: Mapping[str, Tensor]) -> str:
        """Why the reference does not run in fp64; empty if it does."""
        try:
            wide, _ = named_outputs(self._run("wide", example.args, example.kwargs, _copies(tensors)))
        except Exception as error:  # noqa: BLE001 - it is what is asked here
            return " ".join(f"{type(error).__name__}: {error}".split())[:200]
        still = [
            name
            for name, value in wide.items()
            if value.dtype.is_floating_point and value.dtype != torch.float64
        ]
        return f"{still[0]} stays {wide[still[0]].dtype}" if still else ""

    def evaluate(self, request: Evaluate, fds: Sequence[int]) -> Answer:
        """Call the reference in every mode that is asked for."""
        writer = ArenaWriter(fds[:1])
        try:
            tensors = _read(request.inputs, fds[1])
            results: dict[Mode, tuple[TensorReport, ...]] = {}
            for mode in request.modes:
                given = {name: tensor.to(self.device, copy=True) for name, tensor in tensors.items()}
                torch.manual_seed(1)
                outputs, _ = named_outputs(self._run(mode, request.args, request.kwargs, given))
                results[mode] = tuple(_report(name, value, writer) for name, value in outputs.items())
            return Answer(results=results)
        finally:
            writer.close()
            os.close(fds[1])

    def _run(
        self, mode: Mode, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: dict[str, Tensor]
    ) -> Any:
        function = self._callable(mode)
        if mode != "eager":
            for name, tensor in tensors.items():
                if tensor.is_floating_point():
                    tensors[name] = tensor.double().abs() if mode == "magnitudes" else tensor.double()
        positional = [decode(node, tensors, self.device) for node in args]
        named = {name: decode(node, tensors, self.device) for name, node in kwargs.items()}
        with _precision(mode):
            return function(*positional, **named)

    def _callable(self, mode: Mode) -> Callable[..., Any]:
        if "eager" not in self.callables:
            built = self.loaded.build()
            self.callables["eager"] = built.to(self.device) if isinstance(built, torch.nn.Module) else built
        if mode not in self.callables:
            function: Any = self.callables["eager"]
            if isinstance(function, torch.nn.Module):
                function = copy.deepcopy(function).double()
                if mode == "magnitudes":
                    for value in (*function.parameters(), *function.buffers()):
                        value.data = value.data.abs()
            self.callables[mode] = function
        return self.callables[mode]


@contextmanager
def _precision(mode: Mode) -> Iterator[None]:
    if mode == "eager":
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (Widened if mode == "wide" else Magnitudes)():  # type: ignore[no-untyped-call]
            yield
    finally:
        torch.set_default_dtype(before)


def named_outputs(raw: Any) -> tuple[dict[str, Tensor], Any]:
    """What a call returned, by name, and its structure. Raises BadReference for what is no tensor."""
    if isinstance(raw, Tensor):
        return {"out": raw.detach()}, "tensor"
    if isinstance(raw, tuple | list) and raw:
        named, kind = {f"out{i}": value for i, value in enumerate(raw)}, "tuple"
    elif isinstance(raw, dict) and raw:
        named, kind = {str(name): value for name, value in raw.items()}, "dict"
    else:
        raise BadReference(f"it returns a {type(raw).__name__}, not tensors")
    for name, value in named.items():
        if not isinstance(value, Tensor):
            raise BadReference(f"{name} of what it returns is a {type(value).__name__}, not a tensor")
    return {name: value.detach() for name, value in named.items()}, kind


def _info(tensor: Tensor) -> TensorInfo:
    return TensorInfo(shape=tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))


def _read(inputs: Sequence[TensorReport], descriptor: int) -> dict[str, Tensor]:
    """The judge's tensors; its reports are true."""
    memory = mmap.mmap(descriptor, 0)
    tensors: dict[str, Tensor] = {}
    for report in inputs:
        dtype: torch.dtype = getattr(torch, report.dtype)
        count = report.nbytes // dtype.itemsize
        if not count:
            tensors[report.name] = torch.empty(report.shape, dtype=dtype)
            continue
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=report.offset)
        tensors[report.name] = flat.clone().view(report.shape)
    return tensors


def _report(name: str, value: Tensor, writer: ArenaWriter) -> TensorReport:
    dense = value.to_dense() if value.layout != torch.strided else value
    dense = dense.resolve_conj().resolve_neg().contiguous().cpu()
    return TensorReport(
        name=name,
        python_type="torch.Tensor",
        dtype=str(value.dtype).removeprefix("torch."),
        shape=tuple(value.shape),
        device="cpu",
        nbytes=value.numel() * value.element_size(),
        offset=writer.write(dense),
    )


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in tensors.items()}


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool(((a == b) | ((a != a) & (b != b))).all())


def _share(a: Tensor, b: Tensor) -> bool:
    return bool(a.numel()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
