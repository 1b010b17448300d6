"""Trivial kernels: outputs that cost next to nothing, made from what a problem declares.

They see more than a cheat could: the reference's own outputs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from atrex.audit.checked import CheckedIndices
from atrex.contract import InputTensor
from atrex.problem import BENCH, Expected, Problem
from atrex.records import InitValue, Shape

Outputs = dict[str, Tensor]
Inputs = Mapping[str, Tensor]
Own = Callable[[Mapping[str, Any], Inputs], Outputs]  # a shortcut of bench/<op>/shortcuts.py


@dataclass
class Trial:
    """One set of inputs and what is right on it, each computed once."""

    problem: Problem
    shape: Shape
    source: str
    inputs: Inputs
    elsewhere: Callable[[], Inputs]  # inputs of the same source under another seed

    def again(self, **changed: Tensor) -> Outputs:
        """The reference on inputs of which some are replaced, by what need not be legal there."""
        with CheckedIndices():
            return self.problem.reference(self.shape, {**self.inputs, **changed})

    def without(self, name: str) -> Outputs:
        """The reference without one optional input."""
        left = {other: value for other, value in self.inputs.items() if other != name}
        return self.problem.reference(self.shape, left)

    @cached_property
    def eager(self) -> Outputs:
        """The reference's outputs."""
        return self.problem.reference(self.shape, self.inputs)

    @cached_property
    def other(self) -> Outputs:
        """The reference's outputs for another seed."""
        return self.problem.reference(self.shape, self.elsewhere())

    @cached_property
    def known(self) -> Problem:
        """The problem with reference and oracle remembered, for judging many outputs of the same inputs."""
        oracle: dict[str, Expected] = self.problem.oracle(self.shape, self.inputs)
        module = SimpleNamespace(
            reference=lambda init, inputs: self.eager,
            oracle=lambda init, inputs: oracle,
            check=getattr(self.problem.module, "check", None),
        )
        return replace(self.problem, module=module)


@dataclass(frozen=True, slots=True)
class Trivial:
    """A trivial kernel: its name, and its outputs for a trial."""

    name: str
    make: Callable[[Trial], Outputs]
    own: bool = False  # written by hand for this operator


def load_shortcuts(operator: str) -> dict[str, Own]:
    """SHORTCUTS of bench/<operator>/shortcuts.py, which a problem need not have."""
    if not (BENCH / operator / "shortcuts.py").exists():
        return {}
    return cast(dict[str, Own], importlib.import_module(f"bench.{operator}.shortcuts").SHORTCUTS)


def trivial_kernels(problem: Problem, shortcuts: Mapping[str, Own], first: Shape) -> list[Trivial]:
    """All that the declared signature suggests, then those written for the operator.

    `first` is a production shape: what a kernel has constructor arguments from that ignores its own.
    """
    found = [*_outputs(problem), *_copies(problem)]
    for name, tensor in problem.spec.inputs.items():
        found += _ignored(name, tensor)
    for name, spec in problem.spec.init.items():
        if spec.type in ("float", "bool") or spec.choices:  # no extent follows from these
            value = problem.full(first).init[name]
            found.append(Trivial(f"{name} = {value} whatever is asked", partial(_fixed, name, value)))
    found += [Trivial(name, partial(_own, shortcut), own=True) for name, shortcut in shortcuts.items()]
    return found


def _own(shortcut: Own, trial: Trial) -> Outputs:
    return shortcut(trial.problem.full(trial.shape).init, trial.inputs)


# -- outputs that do not depend on the inputs -----------------------------------------------------


def _outputs(problem: Problem) -> Iterator[Trivial]:
    names = tuple(problem.spec.outputs)
    yield Trivial("all zeros", partial(_zeros, names))
    if len(names) > 1:
        for name in names:  # the others right: is this one looked at?
            yield Trivial(f"zeros in {name}", partial(_zeros, (name,)))
    yield Trivial("constants (the reference's means)", _means)
    yield Trivial("outputs of another seed", lambda trial: trial.other)


def _zeros(names: tuple[str, ...], trial: Trial) -> Outputs:
    return {n: torch.zeros_like(t) if n in names else t for n, t in trial.eager.items()}


def _means(trial: Trial) -> Outputs:
    return {name: _mean(value) for name, value in trial.eager.items()}


def _mean(value: Tensor) -> Tensor:
    """The mean of the finite elements everywhere, in the same dtype."""
    wide = value.to(torch.float32)
    finite = wide.isfinite()
    mean = float(torch.where(finite, wide, 0).sum(dtype=torch.float64)) / max(1, int(finite.sum()))
    if not value.is_floating_point():
        mean = round(mean)
    return torch.full_like(wide, mean).to(value.dtype)


def _copies(problem: Problem) -> Iterator[Trivial]:
    """An input in an output's place, where they are declared alike; other outputs right."""
    for out, declared in problem.spec.outputs.items():
        for name, given in problem.spec.inputs.items():
            if (given.shape, given.dtype) == (declared.shape, declared.dtype) and not given.optional:
                yield Trivial(f"{out} = {name}", partial(_copied, name, out))


def _copied(name: str, out: str, trial: Trial) -> Outputs:
    return {**trial.eager, out: trial.inputs[name]}


# -- inputs ignored -------------------------------------------------------------------------------


def _ignored(name: str, tensor: InputTensor) -> Iterator[Trivial]:
    """The reference after one input is replaced by something that says nothing."""
    if tensor.optional:
        yield Trivial(f"{name} absent", lambda trial: trial.without(name))
    if tensor.role == "index":
        if tensor.index and not tensor.index.distinct:
            yield Trivial(f"{name} := 0", partial(_replaced, name, torch.zeros_like))
        yield Trivial(f"{name} := 0, 1, 2 …", partial(_counted, name, tensor))
    elif tensor.role == "lengths":
        yield Trivial(f"{name} evened out", partial(_replaced, name, evened))
    else:
        yield Trivial(f"{name} := 0", partial(_replaced, name, torch.zeros_like))
        if tensor.role == "parameter":
            ones = partial(_replaced, name, lambda value: torch.ones_like(value.float()).to(value.dtype))
            yield Trivial(f"{name} := 1", ones)


def _replaced(name: str, change: Callable[[Tensor], Tensor], trial: Trial) -> Outputs:
    """An optional input that is not there has nothing to be ignored."""
    if name not in trial.inputs:
        return trial.eager
    return trial.again(**{name: change(trial.inputs[name])})


def _fixed(name: str, value: InitValue, trial: Trial) -> Outputs:
    """The reference with one constructor argument fixed."""
    return trial.problem.reference(trial.problem.with_init(trial.shape, **{name: value}), trial.inputs)


def _counted(name: str, tensor: InputTensor, trial: Trial) -> Outputs:
    return _replaced(name, lambda value: counted(value, tensor, trial), trial)


def counted(value: Tensor, tensor: InputTensor, trial: Trial) -> Tensor:
    """0, 1, 2 … over an index tensor; past the last legal index again, or another legal value."""
    assert tensor.index is not None
    below = tensor.index.below
    limit = max(1, below if isinstance(below, int) else trial.shape.dims[below])
    order = torch.arange(value.numel(), device=value.device)
    if tensor.index.distinct and tensor.index.also:
        order = torch.where(order < limit, order, tensor.index.also[0])
    return (order % limit if not tensor.index.distinct else order).to(value.dtype).view(value.shape)


def evened(lengths: Tensor) -> Tensor:
    """Lengths, or prefix sums, of the same total in equal parts."""
    flat = lengths.flatten().long()
    prefix = flat.numel() > 1 and int(flat[0]) == 0 and bool((flat.diff() >= 0).all())
    parts = flat.numel() - 1 if prefix else flat.numel()
    total = int(flat[-1]) if prefix else int(flat.sum())
    ends = torch.arange(parts + 1, device=flat.device) * total // max(1, parts)
    return (ends if prefix else ends.diff()).to(lengths.dtype).view(lengths.shape)
