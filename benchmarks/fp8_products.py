"""What FP8 tensor cores lose: Triton's dot on FP8 operands against the fp64 oracle of block_scaled_mm.

    python benchmarks/fp8_products.py        # needs an NVIDIA GPU with FP8 tensor cores

One row for each kind of inputs and each number of products after which the sum moves to fp32 registers
(`max_num_imprecise_acc`; a whole block of 128 where none is stated): the RMS error over the result's, and the
worst error over the strict fp32 bound and over the contract's, which allows for the tensor cores.
"""

from __future__ import annotations

import sys
import time

import torch
import triton
import triton.language as tl
from torch import Tensor

from atrex.gates.comparators import error_bound
from atrex.inputs import draw_values
from atrex.problem import Expected, load_problem
from atrex.protocol import InputSpec

PROMOTED = (0, 32, 64)  # 0: the compiler's own choice
TILE = 64
GROUP = 128


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]  # Triton's arguments have no Python types
    out,
    a,
    b,
    a_scales,
    b_scales,
    M,
    N,
    K,
    GROUP_N: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
    PROMOTED: tl.constexpr,
):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inner = tl.arange(0, BLOCK)
    total = tl.zeros((TILE, TILE), tl.float32)
    for k in range(0, K, BLOCK):
        left = tl.load(a + row[:, None] * K + k + inner[None, :], row[:, None] < M, other=0.0)
        right = tl.load(b + column[None, :] * K + k + inner[:, None], column[None, :] < N, other=0.0)
        left_scale = tl.load(a_scales + row * (K // BLOCK) + k // BLOCK, row < M, other=0.0)
        right_scale = tl.load(
            b_scales + (column // GROUP_N) * (K // BLOCK) + k // BLOCK, column < N, other=0.0
        )
        part = tl.dot(left, right) if PROMOTED == 0 else tl.dot(left, right, max_num_imprecise_acc=PROMOTED)
        total += part * left_scale[:, None] * right_scale[None, :]
    tl.store(out + row[:, None] * N + column[None, :], total, (row[:, None] < M) & (column[None, :] < N))


def product(inputs: dict[str, Tensor], promoted: int) -> Tensor:
    """The scaled product with sums in tensor cores. a [m, k], b [n, k] FP8; fp32 [m, n]."""
    (m, k), n = inputs["a"].shape, inputs["b"].shape[0]
    out = torch.empty((m, n), dtype=torch.float32, device=inputs["a"].device)
    grid = triton.cdiv(m, TILE), triton.cdiv(n, TILE)
    scales = inputs["a_scales"], inputs["b_scales"]
    _product[grid](out, inputs["a"], inputs["b"], *scales, m, n, k, GROUP, TILE, GROUP, promoted)
    return out


def main() -> int:
    """Print the table."""
    if not torch.cuda.is_available():
        print("needs an NVIDIA GPU: PyTorch sees none here", file=sys.stderr)
        return 3
    problem = load_problem("block_scaled_mm")
    shape = problem.shape_of({"group_n": GROUP, "group_k": GROUP}, {"m": 349, "n": 2048, "k": 2048})
    precision = problem.precision("out", shape)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, ", end="")
    print(time.strftime("%Y-%m-%d"))
    print("| inputs | promoted after | RMS error | over the fp32 bound | over the contract's |")
    print("|---|---|---|---|---|")
    for source in ("production", *(name for probes in problem.probes.values() for name in probes)):
        spec = InputSpec(shape=shape, seed=5, source=source)
        inputs = draw_values(problem, spec, torch.device("cuda"))
        expected = problem.oracle(shape, inputs)["out"]
        strict = Expected(expected.value, expected.terms)
        for promoted in PROMOTED:
            error = product(inputs, promoted).double() - expected.value
            rms = float(error.norm() / expected.value.norm())
            over = [
                float((error.abs() / error_bound(e, torch.float32, precision)).max())
                for e in (strict, expected)
            ]
            print(f"| {source} | {promoted or 'a block'} | {rms:.2e} | {over[0]:.3f} | {over[1]:.3f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
