"""block_scaled_mm: what FP8 tensor cores lose is within the contract, and what loses more is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from atrex.gates.outputs import judge_outputs
from atrex.inputs import draw_values
from atrex.problem import load_problem
from atrex.protocol import InputSpec
from bench.block_scaled_mm import reference as module

CPU = torch.device("cpu")
PROBLEM = load_problem("block_scaled_mm")
SHAPE = PROBLEM.shape_of({"group_n": 128, "group_k": 128}, {"m": 48, "n": 128, "k": 512})
SOURCES = ("production", *(name for probes in module.PROBES.values() for name in probes))
Product = Callable[[dict[str, Tensor]], Tensor]


def accepted(product: Product, source: str) -> bool:
    inputs = draw_values(PROBLEM, InputSpec(shape=SHAPE, seed=5, source=source), CPU)
    found, _ = judge_outputs(PROBLEM, SHAPE, inputs, {"out": product(inputs).float()})
    return found is None


def tensor_cores(bits: int, promoted: int = 128) -> Product:
    """Sums of 32 products aligned to the largest addend and cut below `bits`, fp32 after `promoted` ones."""

    def product(inputs: dict[str, Tensor]) -> Tensor:
        a, b = inputs["a"].double(), inputs["b"].double()
        out = torch.zeros(a.shape[0], b.shape[0], dtype=torch.float64)
        total = torch.zeros_like(out)
        for start in range(0, a.shape[1], 32):
            products = a[:, None, start : start + 32] * b[None, :, start : start + 32]
            largest = torch.maximum(products.abs().amax(-1), total.abs()).clamp(min=2.0**-60)
            unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest)[1] - bits)
            kept = torch.trunc(products / unit[..., None]).sum(-1) + torch.trunc(total / unit)
            total = kept * unit
            if (start + 32) % promoted == 0:
                group = start // 128
                scale = inputs["a_scales"][:, group, None].double() * inputs["b_scales"][:, group].double()
                out, total = (out + total * scale).float().double(), torch.zeros_like(total)
        return out

    return product


def with_operands(narrow: torch.dtype) -> Product:
    """Operands dequantised to a narrow dtype, sums exact."""

    def product(inputs: dict[str, Tensor]) -> Tensor:
        scales = inputs["a_scales"], inputs["b_scales"].repeat_interleave(128, 0)
        a, b = (
            (inputs[name].float() * scale.repeat_interleave(128, 1)).to(narrow).double()
            for name, scale in zip(("a", "b"), scales, strict=True)
        )
        return a @ b.T

    return product


def right(inputs: dict[str, Tensor]) -> Tensor:
    return module.oracle(PROBLEM.full(SHAPE).init, inputs)["out"].value


@pytest.mark.parametrize("source", SOURCES)
def test_tensor_cores_are_accepted(source: str) -> None:
    assert accepted(tensor_cores(14), source)
    assert accepted(tensor_cores(14, promoted=32), source)


@pytest.mark.parametrize(
    "wrong",
    [
        tensor_cores(11),  # fp16 sums within a block
        tensor_cores(8),
        with_operands(torch.bfloat16),
        lambda inputs: right(inputs).to(torch.bfloat16),
        lambda inputs: right(inputs) * (1 + 2.0**-9),
    ],
    ids=["11 bits", "8 bits", "bf16 operands", "bf16 result", "a factor"],
)
def test_less_than_that_is_not(wrong: Product) -> None:
    assert not all(accepted(wrong, source) for source in SOURCES)


def test_the_model_loses_what_an_h200_was_seen_to_lose() -> None:
    """Triton's dot of FP8 had 1.27e-4 of the result's RMS there, in blocks of 128 products."""
    inputs = draw_values(PROBLEM, InputSpec(shape=SHAPE, seed=5), CPU)
    error = tensor_cores(14)(inputs) - right(inputs)
    assert 1e-4 < float(error.norm() / right(inputs).norm()) < 1.5e-4
