"""---
title: Block-scaled FP8 GEMM, each tile's product scaled in fp32
technique: [tensor-cores, tiling, l2-swizzle, software-pipelining, fp8-operands]
dsl: triton
architecture: [sm_90]
operator: block_scaled_mm
symptoms: [compute-bound, low-tensor-core-use, few-programs, l2-misses]
preconditions: "fp8 e4m3 a [M, K], b [N, K], fp32 scales of groups of 16 and more; any row stride"
tunables:
  block_m: [16, 32, 64, 128]
  block_n: [32, 64, 128]
  block_k: [32, 64, 128]
  group_m: [1, 4, 8, 16]
  operands: [bf16, fp8]
  num_warps: [4, 8]
  num_stages: [2, 3, 4]
source: own work
licence: Apache-2.0
---
A program computes a tile of `block_m` x `block_n` outputs. It goes over K in steps of `block_k` that never
straddle a group of scales; each step's product is taken from zero, scaled by a's scale of the row and b's of
the column, and added in fp32. So sums within tensor cores stay short, whatever they are precise to.

`operands` says what the tensor cores multiply: "fp8" feeds the tiles as they are, "bf16" widens them first,
which is exact (bf16 holds every FP8 value) at half the rate and twice the shared memory. `block_k` is
lowered to the group's size where groups are smaller, and groups of 16 are always widened, since FP8 wants
32.

Tiles of `group_m` rows of tiles run next to each other, so that programs that run at one time share operands
in L2. Few rows want small `block_m` and `block_n`, or most multiprocessors stay idle. `num_stages` steps of
both operands are in flight at a time, as far as shared memory goes: it is lowered where it would not fit.
`num_warps` is raised to 8 where 4 would not hold the sums.

The order of every sum depends on the configuration, never on strides or on which rows share a tile.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    (
        {},
        {
            "block_m": 64,
            "block_n": 128,
            "block_k": 128,
            "group_m": 8,
            "operands": "bf16",
            "num_warps": 4,
            "num_stages": 3,
        },
    ),
]
# atrex: end

SHARED_BYTES = 200 * 1024
"""Of shared memory that the tiles may take; an H200's program has 227 KiB, and the compiler needs some."""
FLOATS_PER_LANE = 192
"""Of a step's product and the sum: a lane has 255 registers."""


@triton.jit
def _scaled_mm(out, a, b, a_scales, b_scales, M, N, groups, group_n, group_k, a_stride, b_stride, a_scale_row,
               a_scale_group, b_scale_row, b_scale_group, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
               BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, STEPS: tl.constexpr, WHOLE: tl.constexpr,
               WIDEN: tl.constexpr):  # fmt: skip
    """One tile of the output; a group of k takes STEPS steps (WHOLE: of exactly BLOCK_K)."""
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band, within = tl.program_id(0) // (GROUP_M * tiles_n), tl.program_id(0) % (GROUP_M * tiles_n)
    height = tl.minimum(tiles_m - band * GROUP_M, GROUP_M)
    rows = ((band * GROUP_M + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = (within // height * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    inner = tl.arange(0, BLOCK_K)
    has_row, has_column = rows < M, columns < N
    a_rows = a + (rows * a_stride)[:, None]
    b_rows = b + (columns * b_stride)[None, :]
    a_scale_rows = a_scales + rows * a_scale_row
    b_scale_rows = b_scales + columns // group_n * b_scale_row
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for step in tl.range(0, groups * STEPS):
        group = step // STEPS
        k = group * group_k + step % STEPS * BLOCK_K + inner
        if WHOLE:
            x = tl.load(a_rows + k[None, :], has_row[:, None], other=0.0)
            y = tl.load(b_rows + k[:, None], has_column[None, :], other=0.0)
        else:
            held = k < (group + 1) * group_k
            x = tl.load(a_rows + k[None, :], has_row[:, None] & held[None, :], other=0.0)
            y = tl.load(b_rows + k[:, None], has_column[None, :] & held[:, None], other=0.0)
        if WIDEN:
            x, y = x.to(tl.bfloat16), y.to(tl.bfloat16)
        product = tl.dot(x, y)
        a_scale = tl.load(a_scale_rows + group * a_scale_group, has_row, other=0.0)
        b_scale = tl.load(b_scale_rows + group * b_scale_group, has_column, other=0.0)
        total += product * a_scale[:, None] * b_scale[None, :]
    tl.store(out + (rows * N)[:, None] + columns[None, :], total, has_row[:, None] & has_column[None, :])


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Model(nn.Module):
    """out = a b^T in fp32, a scaled per row and group of k, b per group of n and group of k."""

    def __init__(self, group_n: int = 128, group_k: int = 128) -> None:
        super().__init__()
        self.group_n, self.group_k = group_n, group_k

    def forward(
        self, a: torch.Tensor, b: torch.Tensor, a_scales: torch.Tensor, b_scales: torch.Tensor
    ) -> torch.Tensor:
        a, b = _with_rows(a), _with_rows(b)
        (M, K), N = a.shape, b.shape[0]
        out = torch.empty((M, N), dtype=torch.float32, device=a.device)
        if M == 0:
            return out
        group_n, group_k = self.group_n, self.group_k
        n_groups, groups = b_scales.shape
        dims = {"m": M, "n": N, "k": K, "n_groups": n_groups, "k_groups": groups}
        config = _config(**dims, group_n=group_n, group_k=group_k)
        block_m, block_n, block_k = (int(config[f"block_{axis}"]) for axis in "mnk")
        block_k = min(block_k, triton.next_power_of_2(group_k))
        widen = config["operands"] == "bf16" or block_k < 32
        tiles = (block_m + block_n) * block_k
        warps = 8 if 2 * block_m * block_n > FLOATS_PER_LANE * 32 * 4 else 4
        fitting = (SHARED_BYTES - widen * 2 * tiles) // tiles
        grid = (triton.cdiv(M, block_m) * triton.cdiv(N, block_n),)
        strides = a.stride(0), b.stride(0), *a_scales.stride(), *b_scales.stride()
        _scaled_mm[grid](
            *(out, a, b, a_scales, b_scales, M, N, groups, group_n, group_k, *strides),
            *(block_m, block_n, block_k, int(config["group_m"])),
            STEPS=triton.cdiv(group_k, block_k),
            WHOLE=group_k % block_k == 0,
            WIDEN=widen,
            num_warps=max(warps, int(config["num_warps"])),
            num_stages=max(1, min(int(config["num_stages"]), fitting)),
        )
        return out


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
