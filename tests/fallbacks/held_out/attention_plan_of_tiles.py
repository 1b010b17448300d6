"""Varlen attention: the host plans tiles from cu_seqlens, one program per (tile, head)."""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from typing import Iterator, List, Sequence, Tuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

LOG2E = math.log2(math.e)


@triton.jit
def _rows(ptr, base, idx, limit, stride, d, D):
    ok = (idx[:, None] < limit) & (d[None, :] < D)
    return tl.load(ptr + (base + idx[:, None]).to(tl.int64) * stride + d[None, :], mask=ok, other=0.0)


@triton.jit
def _varlen_fwd(
    Q, K, V, O, Plan,
    sq, sk, sv, so, D, scale_log2,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    tile = tl.program_id(0)
    head = tl.program_id(1)
    start_q = tl.load(Plan + tile * 5)
    first = tl.load(Plan + tile * 5 + 1)
    len_q = tl.load(Plan + tile * 5 + 2)
    start_k = tl.load(Plan + tile * 5 + 3)
    len_k = tl.load(Plan + tile * 5 + 4)
    d = tl.arange(0, BLOCK_D)
    m = first + tl.arange(0, BLOCK_M)
    off = head * D
    q = _rows(Q + off, start_q, m, len_q, sq, d, D)
    high = tl.full([BLOCK_M], float("-inf"), tl.float32)
    denom = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for n0 in tl.range(0, len_k, BLOCK_N):
        n = n0 + tl.arange(0, BLOCK_N)
        k = _rows(K + off, start_k, n, len_k, sk, d, D)
        s = tl.dot(q, tl.trans(k)) * scale_log2
        s = tl.where(n[None, :] < len_k, s, float("-inf"))
        new = tl.maximum(high, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        alpha = tl.exp2(high - new)
        denom = denom * alpha + tl.sum(p, 1)
        v = _rows(V + off, start_k, n, len_k, sv, d, D)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        high = new
    acc = acc / denom[:, None]
    where = O + off + (start_q + m[:, None]).to(tl.int64) * so + d[None, :]
    tl.store(where, acc.to(O.dtype.element_ty), mask=(m[:, None] < len_q) & (d[None, :] < D))


@dataclasses.dataclass(frozen=True)
class Tile:
    start_q: int
    first: int
    len_q: int
    start_k: int
    len_k: int

    @property
    def cost(self) -> int:
        return self.len_k * min(self.len_q - self.first, 128)

    def as_row(self) -> Tuple[int, ...]:
        return dataclasses.astuple(self)


@dataclasses.dataclass(frozen=True)
class Plan:
    table: Tensor
    tiles: int
    flops: float


def _tiles(bounds_q: Sequence[int], bounds_k: Sequence[int], block: int) -> Iterator[Tile]:
    pairs = zip(zip(bounds_q, bounds_q[1:]), zip(bounds_k, bounds_k[1:]))
    for (q0, q1), (k0, k1) in pairs:
        if q1 < q0 or k1 < k0:
            raise ValueError("boundaries must not fall")
        for first in range(0, q1 - q0, block):
            yield Tile(q0, first, q1 - q0, k0, k1 - k0)


class Planner:
    """Keeps the last plans; serving repeats the same batch layout for every layer."""

    def __init__(self, capacity: int = 8) -> None:
        self.capacity = capacity
        self._plans: "OrderedDict[tuple, Plan]" = OrderedDict()

    def __call__(self, cu_q: Tensor, cu_k: Tensor, block: int, width: int) -> Plan:
        both = torch.stack((cu_q, cu_k)).cpu().tolist() if cu_q.shape == cu_k.shape else None
        if both is None:
            raise ValueError("as many key boundaries as query boundaries")
        key = (tuple(both[0]), tuple(both[1]), block, cu_q.device)
        if key in self._plans:
            self._plans.move_to_end(key)
            return self._plans[key]
        todo: List[Tile] = sorted(_tiles(*both, block), key=lambda t: -t.cost)
        flops = sum(4.0 * t.cost * width for t in todo)
        rows = [t.as_row() for t in todo] or [(0, 0, 0, 0, 0)]
        table = torch.tensor(rows, dtype=torch.int32).to(cu_q.device, non_blocking=True)
        self._plans[key] = plan = Plan(table, len(todo), flops)
        while len(self._plans) > self.capacity:
            self._plans.popitem(last=False)
        return plan


def _pack_heads(t: Tensor) -> Tensor:
    """The heads of one token must lie side by side; a row stride is welcome."""
    tokens, heads, dim = t.shape
    if t.stride(2) == 1 and t.stride(1) == dim:
        return t
    return t.contiguous()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plan = Planner()

    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):
        q, k, v = map(_pack_heads, (q, k, v))
        _, heads, dim = q.shape
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        block_m, block_n = (64, 32) if dim > 128 else (128, 64)
        plan = self.plan(cu_seqlens_q, cu_seqlens_k, block_m, heads * dim)
        if plan.tiles == 0:
            return out
        _varlen_fwd[(plan.tiles, heads)](
            q, k, v, out, plan.table,
            q.stride(0), k.stride(0), v.stride(0), out.stride(0), dim, LOG2E / math.sqrt(dim),
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=max(16, triton.next_power_of_2(dim)),
            num_warps=8 if block_m == 128 else 4, num_stages=2,
        )
        return out
