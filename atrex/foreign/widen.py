"""Running a reference in fp64, or on magnitudes, without touching its code; and looking at what it does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NARROW = (torch.float32, torch.float16, torch.bfloat16)
# Sums and products, and what only moves values or takes the larger: of them the function of absolute values
# bounds the sum of magnitudes that rounding errors grow from.
_LINEAR = _names(
    """mm bmm addmm baddbmm mv addmv dot convolution sum mean cumsum mul add sub neg rsub addcmul relu
    threshold leaky_relu max_pool2d_with_indices max_pool1d max_pool3d_with_indices avg_pool1d
    avg_pool2d avg_pool3d _adaptive_avg_pool2d amax abs square pow index_select embedding gather cat
    stack tril triu constant_pad_nd flip roll repeat div index"""
)
_MOVES = _names(
    """view _unsafe_view reshape expand permute transpose t unsqueeze squeeze slice select narrow split
    split_with_sizes chunk unbind unfold as_strided alias detach clone copy_ _to_copy contiguous empty
    empty_like zeros zeros_like ones ones_like full full_like new_empty new_zeros new_ones new_full
    fill_ zero_ scalar_tensor lift_fresh arange empty_strided new_empty_strided diagonal movedim
    lift_fresh_copy _local_scalar_dense is_same_size empty_permuted expand_as"""
)
# Take elements as they are: nothing is summed.
_CHOICES = _names(
    """embedding index_select gather index cat stack flip roll repeat tril triu constant_pad_nd amax amin max
    min argmax argmin sort topk max_pool2d_with_indices max_pool3d_with_indices"""
)
# Operations whose numbers are factors or terms, and those that make tensors of constants.
_SCALED = _names("mul mul_ add add_ sub sub_ rsub div div_ addmm leaky_relu")
_CONSTANTS = _names("full full_like new_full scalar_tensor lift_fresh lift_fresh_copy arange")


class CannotWiden(Exception):
    """The reference does something that has no meaning in fp64."""


def _base(func: Any) -> str:
    return str(func.name().rpartition("::")[2].split(".")[0])


class Widened(TorchDispatchMode):
    """Every conversion and allocation in a narrower floating dtype is one in fp64."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation, in fp64 where it asks for less."""
        named = dict(kwargs or {})
        if named.get("dtype") in _NARROW:
            named["dtype"] = torch.float64
        if func is torch.ops.aten.view.dtype:
            raise CannotWiden("it looks at the bits of its values")
        return func(*args, **named)


class Magnitudes(Widened):
    """fp64, with differences taken as sums and every constant as its magnitude."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation on magnitudes."""
        aten, name = torch.ops.aten, _base(func)
        args = tuple(abs(a) if isinstance(a, int | float) and name in _SCALED else a for a in args)
        named = {
            k: abs(v) if k in ("alpha", "beta", "value") and _number(v) else v
            for k, v in (kwargs or {}).items()
        }
        if name in ("neg", "neg_"):
            return args[0].clone() if name == "neg" else args[0]
        if name in ("sub", "rsub"):
            func = aten.add.Tensor if isinstance(args[1], Tensor) else aten.add.Scalar
        elif name in ("sub_",):
            func = aten.add_.Tensor if isinstance(args[1], Tensor) else aten.add_.Scalar
        result = super().__torch_dispatch__(func, types, args, named)
        if name in _CONSTANTS and isinstance(result, Tensor) and result.is_floating_point():
            return result.abs()
        return result


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Survey(TorchDispatchMode):
    """What a run consists of: only elementwise operations? only sums of products? how long are the sums?"""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.pointwise = True
        self.linear = True
        self.compute = 0
        self.reduced = 1

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation, and take note of it."""
        result = func(*args, **(kwargs or {}))
        name = _base(func)
        if name.rstrip("_") in _MOVES or name in _MOVES:
            # A move that permutes or drops elements is not elementwise, but harmless for the bound.
            self.pointwise &= name not in (
                "slice",
                "select",
                "permute",
                "transpose",
                "t",
                "unfold",
                "as_strided",
            )
            return result
        self.compute += 1
        plain = name.rstrip("_")
        floating = [t for t in tree_flatten(args)[0] if isinstance(t, Tensor) and t.is_floating_point()]
        self.linear &= plain in _LINEAR and not (plain == "div" and _divides(args))
        self.linear &= plain != "pow" or (len(args) > 1 and args[1] in (1, 2, 3, 4))
        if torch.Tag.pointwise not in func.tags:
            self.pointwise = False
            self.reduced += _length(plain, floating, result)
        return result


def _divides(args: tuple[Any, ...]) -> bool:
    """Whether a division is by values that are computed."""
    return len(args) > 1 and isinstance(args[1], Tensor)


def _length(name: str, inputs: list[Tensor], result: Any) -> int:
    """How many terms one element of the result sums, or more."""
    outputs = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor)]
    if not inputs or not outputs or name in _CHOICES:
        return 0
    if name in ("mm", "bmm", "mv", "dot"):
        return int(inputs[0].shape[-1])
    if name in ("addmm", "baddbmm", "addmv"):
        return int(inputs[1].shape[-1])
    if name == "convolution":
        weight = inputs[1]
        return max(1, math.prod(weight.shape) // max(1, min(weight.shape[:2])))
    largest = max(inputs, key=lambda t: t.numel())
    ratio = -(-largest.numel() // max(1, outputs[0].numel()))
    return max(ratio, max(largest.shape, default=1) if ratio == 1 else ratio)
