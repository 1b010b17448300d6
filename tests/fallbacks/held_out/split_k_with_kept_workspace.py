import logging
from typing import NamedTuple, Optional

import torch
import triton
import triton.language as tl
from torch import nn

log = logging.getLogger(__name__)


class Tiling(NamedTuple):
    m: int
    n: int
    k: int
    warps: int
    stages: int

    def programs(self, rows: int, cols: int) -> int:
        return triton.cdiv(rows, self.m) * triton.cdiv(cols, self.n)


SMALL = Tiling(16, 64, 128, 4, 4)
MIDDLE = Tiling(64, 64, 64, 4, 4)
LARGE = Tiling(128, 128, 64, 8, 3)


@triton.jit
def gemm_splitk(
    a_ptr, b_ptr, part_ptr, M, N, K, k_per_split, stride_am, stride_bn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    pid = tl.program_id(0)
    split = tl.program_id(1)
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    width = GROUP * tiles_n
    group = pid // width
    size = tl.minimum(tiles_m - group * GROUP, GROUP)
    pm = group * GROUP + (pid % width) % size
    pn = (pid % width) // size
    rm = (pm * BM + tl.arange(0, BM)).to(tl.int64)
    rn = (pn * BN + tl.arange(0, BN)).to(tl.int64)
    lo = split * k_per_split
    hi = tl.minimum(K, lo + k_per_split)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(lo, hi, BK):
        rk = k0 + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * stride_am + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < hi), other=0.0)
        b = tl.load(b_ptr + rn[None, :] * stride_bn + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < hi), other=0.0)
        acc += tl.dot(a, b)
    dst = part_ptr + (split.to(tl.int64) * M + rm[:, None]) * N + rn[None, :]
    tl.store(dst, acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def epilogue(part_ptr, bias_ptr, mul_ptr, out_ptr, M, N, stride_mul, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    ok = col < N
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for s in tl.static_range(SPLITS):
        total += tl.load(part_ptr + (s * M + row) * N + col, mask=ok, other=0.0)
    total += tl.load(bias_ptr + col, mask=ok, other=0.0).to(tl.float32)
    gate = tl.sigmoid(total.to(out_ptr.dtype.element_ty).to(tl.float32))
    other = tl.load(mul_ptr + row * stride_mul + col, mask=ok, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * N + col, (gate * other).to(out_ptr.dtype.element_ty), mask=ok)


def _last_contiguous(t: torch.Tensor) -> torch.Tensor:
    return t if t.stride(-1) == 1 else t.contiguous()


class Model(nn.Module):
    workspace: Optional[torch.Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("workspace", None, persistent=False)
        self._sms: dict = {}

    def _multiprocessors(self, device: torch.device) -> int:
        if device not in self._sms:
            props = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
            self._sms[device] = getattr(props, "multi_processor_count", 8)
        return self._sms[device]

    def _partials(self, splits: int, rows: int, cols: int, device: torch.device) -> torch.Tensor:
        need = splits * rows * cols
        ws = self.workspace
        if ws is None or ws.numel() < need or ws.device != device:
            log.debug("growing the workspace to %d elements", need)
            self.workspace = ws = torch.empty(need + need // 4, dtype=torch.float32, device=device)
        return ws[:need].view(splits, rows, cols)

    def forward(self, hidden_states, weight, bias, post_mul_mat):
        a, w, mul = (_last_contiguous(t) for t in (hidden_states, weight, post_mul_mat))
        M, K = a.shape
        N = w.size(0)
        assert w.size(1) == K, f"weight has {w.size(1)} columns, the input {K}"
        out = a.new_empty(M, N)
        if out.numel() == 0:
            return out
        tiling = SMALL if M <= 16 else MIDDLE if M <= 512 else LARGE
        tiles = tiling.programs(M, N)
        target = self._multiprocessors(a.device)
        splits = 1
        while splits < 16 and tiles * splits * 2 <= target and K // (splits * 2) >= 2 * tiling.k:
            splits *= 2
        per = triton.cdiv(triton.cdiv(K, splits), tiling.k) * tiling.k
        part = self._partials(splits, M, N, a.device)
        gemm_splitk[(tiles, splits)](
            a, w, part, M, N, K, per, a.stride(0), w.stride(0),
            BM=tiling.m, BN=tiling.n, BK=tiling.k, GROUP=8,
            num_warps=tiling.warps, num_stages=tiling.stages,
        )
        block = min(1024, triton.next_power_of_2(N))
        epilogue[(M, triton.cdiv(N, block))](
            part, bias.contiguous(), mul, out, M, N, mul.stride(0), SPLITS=splits, BLOCK=block
        )
        return out
