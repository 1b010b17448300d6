"""What references hand to PyTorch's fused attention and linear layers lies as those need it, in any layout.

On the CPU they would take anything; on CUDA they give NaN, fault, or round twice.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from atrex.contract import LayoutKind
from atrex.inputs import build_inputs
from atrex.problem import Problem, load_problem
from atrex.protocol import InputSpec
from atrex.records import Shape
from bench.alignment import aligned

OPERATORS = {
    "attention_forward": "scaled_dot_product_attention",
    "mla_decode_attention": "scaled_dot_product_attention",
    "paged_attention_decode": "scaled_dot_product_attention",
    "unified_attention": "scaled_dot_product_attention",
    "linear_sigmoid_mul": "linear",
}


def lies_well(tensor: Tensor) -> bool:
    """Dense rows, each at a multiple of 16 bytes; a dimension of one step is none.

    Rows whose own width is none have no such place: on CUDA a reference takes another way for them.
    """
    unit = 16 // tensor.element_size()
    if tensor.shape[-1] % unit:
        return True
    steps = [s for s, n in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True) if n > 1]
    return tensor.stride(-1) == 1 and not any(step % unit for step in (tensor.storage_offset(), *steps))


def laid_out(problem: Problem) -> list[tuple[Shape, dict[str, Tensor]]]:
    """Every third odd shape with each of its inputs in each layout in turn."""
    found = []
    for shape in problem.odd()[::3]:
        for name, declared in problem.spec.inputs.items():
            for kind in get_args(LayoutKind):
                if len(declared.shape) > 1 or kind in ("offset", "strided"):
                    spec = InputSpec(shape=shape, seed=3, layouts={name: kind})
                    found.append((shape, build_inputs(problem, spec, torch.device("cpu"))[0]))
    return found


@pytest.mark.parametrize("operator", OPERATORS)
def test_fused_calls_get_rows_as_they_need_them(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen through the real call, which is then made."""
    name = OPERATORS[operator]
    real, seen = getattr(functional, name), []

    def call(*tensors: Tensor, **options: Any) -> Tensor:
        seen.append(all(lies_well(tensor) for tensor in tensors))
        out: Tensor = real(*tensors, **options)
        return out

    monkeypatch.setattr(functional, name, call)
    problem = load_problem(operator)
    for shape, inputs in laid_out(problem):
        problem.reference(shape, inputs)
    assert seen
    assert all(seen)


def test_only_what_lies_badly_is_copied() -> None:
    """Padded rows at multiples of 16 bytes stay where they are."""
    buffer = torch.zeros(8, 64, dtype=torch.bfloat16)
    for well in (buffer, buffer[:, :40], buffer[1:, 8:16]):
        assert aligned(well) is well
    for badly in (buffer[:, 1:], buffer[:, ::2], buffer.T, torch.zeros(8, 9, dtype=torch.bfloat16)):
        assert lies_well(aligned(badly))
        assert torch.equal(aligned(badly), badly)
