"""block_scaled_mm: inputs, eager reference, fp64 oracle, directed probes and cost.

Shapes: a [m, k] and b [n, k] FP8, a_scales [m, k/group_k] and b_scales [n/group_n, k/group_k] fp32, out [m,
n] fp32. Formula: the fine-grained scaling of DeepSeek-V3 (arXiv:2412.19437, section 3.3.2): the sum over
blocks g of k of (a_g b_g^T) * a_scales[:, g] * b_scales[n // group_n, g].
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from atrex.fp8 import FP8, FP8_MAX
from atrex.problem import LAMBDA, Draw, Expected, Init, Input
from atrex.records import Cost, Shape

_DRAW_CHUNK = 1 << 26  # elements of fp32 at a time while quantising: 256 MiB
_STEP = 32  # products that an FP8 tensor core adds at a time
_CUT = 2.0**-13  # of the largest addend, below which it cuts
_ORACLE_CHUNK = 1 << 24  # elements of fp64 at a time: 128 MiB, and a few of them live


def extents(init: Init, input: Input) -> dict[str, Any]:
    """Numbers of groups from n and k. Raises ValueError where these are not whole groups."""
    for name in ("group_n", "group_k"):
        if input.get(name, init[name]) != init[name]:
            raise ValueError(f"{name} is {init[name]} in init and {input[name]} in input")
    groups = dict[str, int]()
    for name in ("n", "k"):
        size = int(init[f"group_{name}"])
        if size < 1 or input[name] % size:
            raise ValueError(f"{name} = {input[name]} is not a multiple of group_{name} = {size}")
        groups[f"{name}_groups"] = input[name] // size
    return {"m": input["m"], **groups}


def derive(init: Init, dims: Mapping[str, int], lengths: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """n and k are whole groups."""
    return {"n": dims["n_groups"] * int(init["group_n"]), "k": dims["k_groups"] * int(init["group_k"])}


def _quantise(x: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """x in blocks of `rows` x `columns`: FP8 values, and fp32 scales amax / FP8_MAX (1 for zeros)."""
    blocks = x.view(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    amax = blocks.abs().amax((1, 3))
    scales = torch.where(amax > 0, amax / FP8_MAX, 1.0)
    scaled = (blocks / scales[:, None, :, None]).clamp_(-FP8_MAX, FP8_MAX)
    return scaled.view(x.shape).to(FP8), scales


def _quantised_rows(draw: Draw) -> tuple[Tensor, Tensor]:
    """a ~ N(0, 1) quantised by row and group of columns, some rows at a time."""
    rows, k = draw.dims["m"], draw.dims["k"]
    a = torch.empty((rows, k), dtype=FP8, device=draw.device)
    scales = torch.empty((rows, draw.dims["k_groups"]), dtype=torch.float32, device=draw.device)
    step = max(1, _DRAW_CHUNK // k)
    for start in range(0, rows, step):
        some = draw.normal((min(step, rows - start), k), 1.0, torch.float32)
        a[start : start + step], scales[start : start + step] = _quantise(some, 1, draw.init["group_k"])
    return a, scales


def make_inputs(draw: Draw) -> dict[str, Tensor]:
    """Production-like: N(0, 1) quantised per group (a) and per block (b) by amax / FP8_MAX."""
    a, a_scales = _quantised_rows(draw)
    matrix = draw.normal((draw.dims["n"], draw.dims["k"]), 1.0, torch.float32)
    b, b_scales = _quantise(matrix, draw.init["group_n"], draw.init["group_k"])
    return {"a": a, "b": b, "a_scales": a_scales, "b_scales": b_scales}


def _dequantise(x: Tensor, scales: Tensor, rows: int, columns: int) -> Tensor:
    """Elements times the scale of their block, in the dtype of `scales`."""
    blocks = x.to(scales.dtype).view(x.shape[0] // rows, rows, x.shape[1] // columns, columns)
    return (blocks * scales[:, None, :, None]).view(x.shape)


def reference(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Eager PyTorch as a competent user writes it: dequantise, then one fp32 product.

    Products of the FP8 values alone would be exact in bf16 and could use tensor cores, but in eager mode
    every block of k then writes, scales and adds an m x n matrix: k / 128 times the output's traffic, four
    times over, which costs about as much as this. Dequantised values need more bits than bf16 or TF32 has.
    """
    a = _dequantise(inputs["a"], inputs["a_scales"], 1, init["group_k"])
    b = _dequantise(inputs["b"], inputs["b_scales"], init["group_n"], init["group_k"])
    return {"out": a @ b.T}


def oracle(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Expected]:
    """The formula in fp64, some rows at a time; `terms` is the sum of the magnitudes of its k products.

    Scaling an element, or a block's sum, or by the product of both scales, rounds a few times relative to
    terms that the sum counts already. `slack` is what the sum of one block loses in FP8 tensor cores.

    They add the products of a step of 32, and what was summed before, after aligning all to the largest and
    cutting each below 2^-13 of that one's power of two (14 bits: DeepSeek-V3, section 3.3.2, whose kernels
    therefore move the sum to fp32 registers after 128 products; simulated so, a sum by blocks has the RMS
    error that Triton's dot has on an H200, 1.2e-4 of the result's). A cut loses less than u = 2^-13 M, where
    M, the largest product or partial sum, is taken as the larger of the block's sum and the root of the sum
    of its squared products. Cuts count as independent, each of second moment u^2 / 3, and as bounded by u:
    min(c, 6 sqrt(c / 3)) u for the c addends of a block, and the root of the sum of squares over blocks.
    """
    a, group_k = inputs["a"], init["group_k"]
    b = _dequantise(inputs["b"], inputs["b_scales"].double(), init["group_n"], group_k)
    shape = (a.shape[0], b.shape[0])
    value, terms, spread = (torch.zeros(shape, dtype=torch.float64, device=a.device) for _ in range(3))
    step = max(1, _ORACLE_CHUNK // max(b.shape))
    for start in range(0, a.shape[0], step):
        rows = slice(start, start + step)
        some = _dequantise(a[rows], inputs["a_scales"][rows].double(), 1, group_k)
        for left, right in zip(some.split(group_k, 1), b.split(group_k, 1), strict=True):
            part = left @ right.T
            value[rows] += part
            terms[rows] += left.abs() @ right.abs().T
            spread[rows] += torch.maximum(part.square_(), left.square() @ right.square().T)
    addends = group_k + -(-group_k // _STEP)
    cut = _CUT * min(addends, LAMBDA * math.sqrt(addends / 3))
    return {"out": Expected(value, terms, spread.sqrt_().mul_(cut))}


def cost(shape: Shape) -> Cost:
    """Fewest operations and bytes: 2 m n k for the products, and per output and block of k two scales and an
    addition, of which the first block needs none.
    """
    m, n, k, blocks = (shape.dims[name] for name in ("m", "n", "k", "k_groups"))
    return Cost(
        flops={"fp8": float(2 * m * n * k), "fp32": float(m * n * (3 * blocks - 1))},
        read_bytes=(m + n) * k + 4 * blocks * (m + shape.dims["n_groups"]),
        write_bytes=4 * m * n,
    )


def small(init: Init, input: Input) -> tuple[Init, Input]:
    """A few rows, two groups of n and four of k."""
    n, k = (min(input["n"], 2 * init["group_n"]), min(input["k"], 4 * init["group_k"]))
    return init, {**input, "m": min(input["m"], 37), "n": n, "k": k}


def _odd(m: int, n: int, k: int, group_n: int = 128, group_k: int = 128) -> tuple[Init, Input]:
    groups = {"group_n": group_n, "group_k": group_k}
    return groups, {"m": m, "n": n, "k": k, **groups}


ODD = (
    _odd(1, 128, 128),
    _odd(0, 256, 256),  # no row at all
    _odd(2, 128, 384),
    _odd(3, 384, 1152),  # nine blocks of k
    _odd(7, 128, 2176),  # seventeen
    _odd(17, 640, 128),  # k of one block
    _odd(31, 384, 640),
    _odd(63, 256, 384),
    _odd(65, 128, 256),
    _odd(127, 384, 128),
    _odd(129, 256, 640),
    _odd(257, 128, 384),
    _odd(33, 192, 256, 64, 128),  # a tile of 128 columns spans two scales, the last half a tile
    _odd(37, 256, 192, 128, 64),
    _odd(5, 96, 160, 32, 32),
    _odd(19, 512, 768, 256, 256),
    _odd(9, 240, 576, 48, 192),  # groups that no power of two divides
    _odd(6, 48, 288, 16, 96),
    _odd(3, 32, 2048, 32, 1024),
)


def _spread(draw: Draw, scales: Tensor) -> Tensor:
    """Scales times 2^-6 to 2^6 and 1 to 2: the scale of another group is far off, one in bf16 a little."""
    return torch.exp2(draw.integers(scales.shape, 13).float() - 6) * (1 + draw.uniform(scales.shape))


def scales_apart(draw: Draw) -> dict[str, Tensor]:
    """FP8 values of N(0, 1) as they are, under scales of 24 bits that differ widely from group to group."""
    inputs = make_inputs(draw)
    for name in ("a_scales", "b_scales"):
        inputs[name] = _spread(draw, inputs[name])
    return inputs


def extreme_scales(draw: Draw) -> dict[str, Tensor]:
    """Rows whose scales go from 2^-40 to 2^40, blocks of b that undo some of it, signs mixed."""
    inputs = make_inputs(draw)
    exponent = (torch.arange(draw.dims["m"], device=draw.device) * 7 % 81 - 40).float()
    inputs["a_scales"] = torch.exp2(exponent)[:, None] * (1 + draw.uniform(inputs["a_scales"].shape))
    sign = torch.where(draw.uniform(inputs["b_scales"].shape) < 0.5, -1.0, 1.0)
    inputs["b_scales"] = sign * torch.exp2(draw.integers(sign.shape, 17).float() - 8)
    return inputs


def zero_groups(draw: Draw) -> dict[str, Tensor]:
    """Half of the groups and blocks hold zeros under large scales: nothing of them may show."""
    inputs = make_inputs(draw)
    group_n, group_k = draw.init["group_n"], draw.init["group_k"]
    for name, rows in (("a", 1), ("b", group_n)):
        scales = inputs[f"{name}_scales"]
        empty = draw.uniform(scales.shape) < 0.5
        where = empty.repeat_interleave(rows, 0).repeat_interleave(group_k, 1)
        inputs[name] = inputs[name].view(torch.uint8).masked_fill(where, 0).view(FP8)
        inputs[f"{name}_scales"] = torch.where(empty, 2.0**50, scales)
    return inputs


def _ones(draw: Draw) -> dict[str, Tensor]:
    d, device = draw.dims, draw.device
    return {
        "a": torch.ones((d["m"], d["k"]), device=device).to(FP8),
        "b": torch.ones((d["n"], d["k"]), device=device).to(FP8),
        "a_scales": torch.ones((d["m"], d["k_groups"]), device=device),
        "b_scales": torch.ones((d["n_groups"], d["k_groups"]), device=device),
    }


def stagnation(draw: Draw) -> dict[str, Tensor]:
    """Each row has one product of 64 * 64 among ones: in 8 or 11 bits the ones vanish beside it.

    The ratio, 2^12, is one that FP8 tensor cores keep, which align a group of products to the largest with 13
    bits behind it.
    """
    inputs = _ones(draw)
    code = torch.full((1,), 64.0, device=draw.device).to(FP8).view(torch.uint8)
    row = torch.arange(draw.dims["m"], device=draw.device)
    inputs["a"].view(torch.uint8)[row, row * 37 % draw.dims["k"]] = code
    inputs["b"] = (draw.integers(inputs["b"].shape, 3) * 0.5 + 1).to(FP8)
    inputs["b"].view(torch.uint8)[:, :: draw.init["group_k"]] = code
    return inputs


def late_blocks(draw: Draw) -> dict[str, Tensor]:
    """One block of k has 2^14 times the others' scale: sums kept narrow between blocks lose the rest."""
    inputs = _ones(draw)
    row = torch.arange(draw.dims["m"], device=draw.device)
    inputs["a_scales"][row, row % draw.dims["k_groups"]] = 2.0**14
    inputs["b"] = (draw.integers(inputs["b"].shape, 3) * 0.5 + 1).to(FP8)
    return inputs


def fine_scales(draw: Draw) -> dict[str, Tensor]:
    """Powers of two under scales of 1 + 2^-9 + 2^-12: operands dequantised to bf16 or TF32 lose some."""
    inputs = _ones(draw)
    for name in ("a", "b"):
        inputs[name] = torch.exp2(draw.integers(inputs[name].shape, 3).float()).to(FP8)
        inputs[f"{name}_scales"] *= 1 + 2.0**-9 + 2.0**-12
    return inputs


# Directed inputs by the gate that uses them.
PROBES = {
    "accumulation": {"stagnation": stagnation, "late_blocks": late_blocks, "fine_scales": fine_scales},
    "sensitivity": {
        "scales_apart": scales_apart,
        "extreme_scales": extreme_scales,
        "zero_groups": zero_groups,
    },
}
