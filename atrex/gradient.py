"""Gradients: the formula in fp64 through autograd, and how far off a backward may be.

A problem whose contract lists `gradients` has `bench/<operator>/smooth.py` with `smooth(init, inputs)`: the
formula as plain differentiable PyTorch in the dtype of its inputs, with the roundings that its definition
names as `narrow`. In fp64 its gradient is the oracle.

The bound is measured by Monte Carlo arithmetic (D. S. Parker, "Monte Carlo Arithmetic", UCLA CSD-970002,
1997): the gradient is taken again with every input, every upstream element and the result of every operation,
forward and backward, off by a random sign times u (min(n, 6 sqrt(n)) + k), n the largest extent and k the
contract's further roundings, and with every gradient that passes a named rounding off by half a unit of that
dtype. Five times the RMS change over 32 draws, element by element, is the allowance. Terms of a sum move on
their own, so it grows like the root of the sum of their squares, as rounding errors do; and where values
cancel, what their own roundings leave is seen.

Why five: an honest sum of rounded terms, each off by an equally likely amount within half a unit, varies
1/sqrt(3) as much as one whose terms are off by half a unit, so its error over the RMS of 32 draws is like
Student's t of 32 degrees over sqrt(3). That is above five with a probability of 7e-10 for each element, and a
judgement looks at some 10^7.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from atrex.fallback.operations import classify_op
from atrex.problem import LAMBDA, UNIT_ROUNDOFF, Draw, Expected, Problem
from atrex.records import Shape

_DRAWS = 32
_SPREAD = 5.0
_noise: ContextVar[_MonteCarlo | None] = ContextVar("noise", default=None)


def upstream(problem: Problem, shape: Shape, seed: int, device: torch.device) -> dict[str, Tensor]:
    """What the outputs weigh, ~ N(0, 1) in their dtypes: worker and judge draw alike."""
    draw = Draw(shape, torch.Generator(device).manual_seed(seed), device)
    outputs = problem.spec.outputs.items()
    dtypes = {name: problem.tensor_dtype(declared, shape) for name, declared in outputs}
    return {
        name: draw.normal(problem.tensor_shape(declared, shape), 1.0, dtypes[name])
        for name, declared in outputs
        if dtypes[name].is_floating_point
    }


def offered(
    outputs: Mapping[str, Any], above: Mapping[str, Tensor], scale: float, leaves: Mapping[str, Tensor]
) -> list[tuple[str, Tensor]] | None:
    """The gradients that a candidate's outputs have, by the name of the leaf; None: they have no history."""
    heads = {name: outputs[name] for name in above if getattr(outputs.get(name), "requires_grad", False)}
    if not heads:
        return None
    weights = [scale * above[name] for name in heads]
    found = torch.autograd.grad(list(heads.values()), list(leaves.values()), weights, allow_unused=True)
    return [(name, gradient) for name, gradient in zip(leaves, found, strict=True) if gradient is not None]


def narrow(x: Tensor, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """A rounding that the definition names; its gradient passes as if there were none."""
    rounded: Tensor = _Narrow.apply(x, dtype)  # type: ignore[no-untyped-call]
    return rounded


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.eps, ctx.noise = torch.finfo(dtype).eps, _noise.get()  # a backward may run in another thread
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        return gradient if ctx.noise is None else _off(gradient, ctx.eps / 2, ctx.noise.generator), None


class _MonteCarlo(TorchDispatchMode):
    """The result of every operation that computes is off by a random relative amount."""

    def __init__(self, amount: float, generator: torch.Generator) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.amount, self.generator = amount, generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if classify_op(func.name()) == "compute" and isinstance(found, Tensor) and found.is_floating_point():
            return _off(found, self.amount, self.generator)
        return found


def expected_gradient(
    problem: Problem, shape: Shape, inputs: Mapping[str, Tensor], given: Mapping[str, Tensor], name: str
) -> Expected:
    """The gradient with respect to the input `name`, in fp64, and its allowance as `slack`."""
    wide = {n: v.double() if v.is_floating_point() else v for n, v in inputs.items()}
    above = {n: v.double() for n, v in given.items()}
    value = _differentiate(problem, shape, wide, above, name)
    longest = max(shape.dims.values(), default=1)
    units = min(longest, LAMBDA * math.sqrt(longest)) + problem.contract.rounding_steps
    amount = UNIT_ROUNDOFF[problem.contract.accumulator] * units
    total = torch.zeros_like(value)
    for seed in range(_DRAWS):
        generator = torch.Generator(value.device).manual_seed(seed)
        moved = {n: _off(v, amount, generator) if v.is_floating_point() else v for n, v in wide.items()}
        there = {n: _off(v, amount, generator) for n, v in above.items()}
        with _noisy(_MonteCarlo(amount, generator)):
            other = _differentiate(problem, shape, moved, there, name)
        total += (other - value).square_()
    return Expected(value, torch.zeros_like(value), _SPREAD * (total / _DRAWS).sqrt_())


def eager_gradient(
    problem: Problem, shape: Shape, inputs: Mapping[str, Tensor], given: Mapping[str, Tensor], name: str
) -> Tensor:
    """What PyTorch's autograd makes of the eager reference."""
    leaf = inputs[name].detach().requires_grad_()
    outputs = problem.reference(shape, {**inputs, name: leaf})
    return _pull(outputs, given, leaf)


def _differentiate(
    problem: Problem, shape: Shape, inputs: Mapping[str, Tensor], given: Mapping[str, Tensor], name: str
) -> Tensor:
    leaf = inputs[name].detach().requires_grad_()
    return _pull(problem.smooth(shape, {**inputs, name: leaf}), given, leaf)


def _pull(outputs: Mapping[str, Tensor], given: Mapping[str, Tensor], leaf: Tensor) -> Tensor:
    names = [name for name in given if outputs[name].requires_grad]
    heads, above = [outputs[name] for name in names], [given[name] for name in names]
    (gradient,) = torch.autograd.grad(heads, [leaf], above)
    return gradient


def _off(x: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Each element off by a random sign times a relative amount."""
    bits = torch.empty(x.shape, dtype=torch.int8, device=x.device).random_(0, 2, generator=generator)
    return x * (1 + amount * (2 * bits - 1).to(x.dtype))


@contextmanager
def _noisy(noise: _MonteCarlo) -> Iterator[None]:
    token = _noise.set(noise)
    try:
        with noise:
            yield
    finally:
        _noise.reset(token)
