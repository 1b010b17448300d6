"""gate: shapes
A tile of k runs on into the next group where tiles do not divide groups.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _scaled_mm(
    out,
    a,
    b,
    a_scales,
    b_scales,
    M,
    N,
    K,
    group_n,
    group_k,
    a_stride,
    b_stride,
    a_scale_row,
    a_scale_group,
    b_scale_row,
    b_scale_group,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    tiles_m, tiles_n = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    band, within = tl.program_id(0) // (GROUP * tiles_n), tl.program_id(0) % (GROUP * tiles_n)
    height = tl.minimum(tiles_m - band * GROUP, GROUP)
    rows = ((band * GROUP + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    columns = (within // height * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    inner = tl.arange(0, BLOCK_K)
    has_row, has_column = rows < M, columns < N
    a_rows = a + (rows * a_stride)[:, None]
    b_rows = b + (columns * b_stride)[None, :]
    a_scale_at = a_scales + rows * a_scale_row
    b_scale_at = b_scales + columns // group_n * b_scale_row
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in tl.range(0, K, group_k):
        partial = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in tl.range(first, first + group_k, BLOCK_K):
            k = start + inner
            held = k < K
            x = tl.load(a_rows + k[None, :], has_row[:, None] & held[None, :], other=0.0).to(tl.bfloat16)
            y = tl.load(b_rows + k[:, None], has_column[None, :] & held[:, None], other=0.0).to(tl.bfloat16)
            partial = tl.dot(x, y, partial)
        a_scale = tl.load(a_scale_at, has_row, other=0.0)
        b_scale = tl.load(b_scale_at, has_column, other=0.0)
        total += partial * a_scale[:, None] * b_scale[None, :]
        a_scale_at += a_scale_group
        b_scale_at += b_scale_group
    tl.store(out + (rows * N)[:, None] + columns[None, :], total, has_row[:, None] & has_column[None, :])


def _with_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class Model(nn.Module):
    def __init__(self, group_n: int = 128, group_k: int = 128) -> None:
        super().__init__()
        self.group_n, self.group_k = group_n, group_k

    def forward(
        self, a: torch.Tensor, b: torch.Tensor, a_scales: torch.Tensor, b_scales: torch.Tensor
    ) -> torch.Tensor:
        a, b = _with_rows(a), _with_rows(b)
        (M, K), N = a.shape, b.shape[0]
        out = torch.empty((M, N), dtype=torch.float32, device=a.device)
        if M > 0:
            block_m = 16 if M <= 16 else 64 if M <= 512 else 128
            block_k = min(128, max(16, triton.next_power_of_2(self.group_k)))
            grid = (triton.cdiv(M, block_m) * triton.cdiv(N, 128),)
            strides = a.stride(0), b.stride(0), *a_scales.stride(), *b_scales.stride()
            sizes = {"BLOCK_M": block_m, "BLOCK_N": 128, "BLOCK_K": block_k, "GROUP": 8}
            groups = (M, N, K, self.group_n, self.group_k)
            warps = 8 if block_m == 128 else 4
            _scaled_mm[grid](
                out, a, b, a_scales, b_scales, *groups, *strides, **sizes, num_warps=warps, num_stages=3
            )
        return out
