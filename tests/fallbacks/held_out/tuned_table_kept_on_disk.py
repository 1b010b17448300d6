"""Gated linear: sigmoid(x W^T + b) * m, with a table of tuned variants kept between processes.

Choice of a variant: the table on disk, else the cost model, and with ATREX_HELDOUT_TUNE=1 a measurement.
"""

from __future__ import annotations

import json
import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

logger = logging.getLogger(__name__)
TUNE = os.environ.get("ATREX_HELDOUT_TUNE", "0") not in ("", "0", "false")
TABLE_PATH = Path(os.environ.get("XDG_CACHE_HOME", tempfile.gettempdir())) / "heldout_gated_linear.json"


# --------------------------------------------------------------------------------------------- kernels
@triton.jit
def _swizzle(pid, tiles_m, tiles_n, GROUP: tl.constexpr):
    width = GROUP * tiles_n
    first = (pid // width) * GROUP
    size = tl.minimum(tiles_m - first, GROUP)
    return first + (pid % width) % size, (pid % width) // size


@triton.jit
def _accumulate(x, w, rm, rn, M, N, lo, hi, sxm, swn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k0 in range(lo, hi, BK):
        rk = k0 + tl.arange(0, BK)
        a = tl.load(x + rm[:, None] * sxm + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < hi), other=0.0)
        b = tl.load(w + rn[None, :] * swn + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < hi), other=0.0)
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def _fused(
    x, w, bias, mul, out, M, N, K, sxm, swn, smm,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    pm, pn = _swizzle(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rm = (pm * BM + tl.arange(0, BM)).to(tl.int64)
    rn = (pn * BN + tl.arange(0, BN)).to(tl.int64)
    acc = _accumulate(x, w, rm, rn, M, N, 0, K, sxm, swn, BM, BN, BK)
    acc += tl.load(bias + rn, mask=rn < N, other=0.0).to(tl.float32)[None, :]
    ok = (rm[:, None] < M) & (rn[None, :] < N)
    gate = tl.sigmoid(acc.to(tl.bfloat16).to(tl.float32))
    factor = tl.load(mul + rm[:, None] * smm + rn[None, :], mask=ok, other=0.0).to(tl.float32)
    tl.store(out + rm[:, None] * N + rn[None, :], (gate * factor).to(tl.bfloat16), mask=ok)


@triton.jit
def _pieces(
    x, w, space, M, N, K, per, sxm, swn, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    pm, pn = _swizzle(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    s = tl.program_id(1)
    rm = (pm * BM + tl.arange(0, BM)).to(tl.int64)
    rn = (pn * BN + tl.arange(0, BN)).to(tl.int64)
    acc = _accumulate(x, w, rm, rn, M, N, s * per, tl.minimum(K, (s + 1) * per), sxm, swn, BM, BN, BK)
    at = space + (s.to(tl.int64) * M + rm[:, None]) * N + rn[None, :]
    tl.store(at, acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@triton.jit
def _finish(space, bias, mul, out, M, N, smm, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    total = tl.cast(M, tl.int64) * N
    ok = i < total
    acc = tl.load(bias + i % N, mask=ok, other=0.0).to(tl.float32)
    for s in range(SPLITS):
        acc += tl.load(space + s * total + i, mask=ok, other=0.0)
    gate = tl.sigmoid(acc.to(tl.bfloat16).to(tl.float32))
    factor = tl.load(mul + (i // N) * smm + i % N, mask=ok, other=0.0).to(tl.float32)
    tl.store(out + i, (gate * factor).to(tl.bfloat16), mask=ok)


# -------------------------------------------------------------------------------------------- variants
@dataclass(frozen=True, order=True)
class Variant:
    bm: int
    bn: int
    bk: int
    splits: int = 1
    warps: int = 4
    stages: int = 3

    @property
    def name(self) -> str:
        return "x".join(str(v) for v in asdict(self).values())

    def waves(self, m: int, n: int, units: int) -> float:
        return math.ceil(m / self.bm) * math.ceil(n / self.bn) * self.splits / units

    def cost(self, m: int, n: int, k: int, units: int) -> float:
        """Microseconds, roughly: full waves of tiles, and the workspace's traffic."""
        tile = 2.0 * self.bm * self.bn * (k / self.splits) / 4.0e6
        return math.ceil(self.waves(m, n, units)) * tile + (self.splits > 1) * 8.0 * m * n * self.splits / 3.0e6


RUNNERS: dict[str, Callable[..., None]] = {}


def runner(kind: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(fn: Callable[..., None]) -> Callable[..., None]:
        assert kind not in RUNNERS, kind
        RUNNERS[kind] = fn
        return fn

    return register


@runner("fused")
def run_fused(v: Variant, x: Tensor, w: Tensor, bias: Tensor, mul: Tensor, out: Tensor) -> None:
    (M, K), N = x.shape, w.shape[0]
    _fused[(triton.cdiv(M, v.bm) * triton.cdiv(N, v.bn),)](
        x, w, bias, mul, out, M, N, K, x.stride(0), w.stride(0), mul.stride(0),
        BM=v.bm, BN=v.bn, BK=v.bk, GROUP=8, num_warps=v.warps, num_stages=v.stages,
    )


@runner("split")
def run_split(v: Variant, x: Tensor, w: Tensor, bias: Tensor, mul: Tensor, out: Tensor) -> None:
    (M, K), N = x.shape, w.shape[0]
    per = triton.cdiv(K, v.splits * v.bk) * v.bk
    space = torch.empty((v.splits, M, N), dtype=torch.float32, device=x.device)
    _pieces[(triton.cdiv(M, v.bm) * triton.cdiv(N, v.bn), v.splits)](
        x, w, space, M, N, K, per, x.stride(0), w.stride(0),
        BM=v.bm, BN=v.bn, BK=v.bk, GROUP=8, num_warps=v.warps, num_stages=v.stages,
    )
    _finish[(triton.cdiv(M * N, 1024),)](space, bias, mul, out, M, N, mul.stride(0), SPLITS=v.splits, BLOCK=1024)


class Table:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, int]] = {}
        try:
            self.rows.update(json.loads(path.read_text()))
        except (OSError, ValueError) as error:
            logger.debug("no table at %s: %s", path, error)

    def __getitem__(self, key: str) -> Variant:
        return Variant(**self.rows[key])

    def __contains__(self, key: object) -> bool:
        return key in self.rows

    def keep(self, key: str, variant: Variant) -> None:
        self.rows[key] = asdict(variant)
        scratch = self.path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(self.rows, indent=1, sort_keys=True))
        scratch.replace(self.path)


TABLE = Table(TABLE_PATH)


def variants(m: int, k: int) -> Iterable[Variant]:
    small = m <= 64
    for bm in (16, 32) if small else (64, 128):
        for bn in (64, 128):
            yield Variant(bm, bn, 64, warps=8 if bm * bn >= 128 * 128 else 4)
            if small:
                yield from (Variant(bm, bn, 64, s) for s in (2, 4, 8) if k >= s * 256)


def bucket(value: int) -> int:
    return 0 if value <= 0 else 1 << (value - 1).bit_length()


def choose(args: tuple[Any, ...]) -> Variant:
    x, w = args[:2]
    (m, k), n = x.shape, w.shape[0]
    units = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 8
    key = f"{bucket(m)}/{n}/{k}/{units}"
    if key in TABLE:
        return TABLE[key]
    ranked = sorted(variants(m, k), key=lambda v: (v.cost(m, n, k, units), v))
    if not (TUNE and x.is_cuda):
        return ranked[0]
    times = {v: triton.testing.do_bench(lambda v=v: launch(v, args), warmup=5, rep=20) for v in ranked[:6]}
    best = min(times, key=times.get)
    logger.info("%s: %s in %.1f us", key, best.name, 1e3 * times[best])
    TABLE.keep(key, best)
    return best


def launch(variant: Variant, args: tuple[Any, ...]) -> None:
    RUNNERS["fused" if variant.splits == 1 else "split"](variant, *args)


class Model(nn.Module):
    def forward(self, hidden_states: Tensor, weight: Tensor, bias: Tensor, post_mul_mat: Tensor) -> Tensor:
        x, w, mul = (t if t.stride(-1) == 1 else t.contiguous() for t in (hidden_states, weight, post_mul_mat))
        out = torch.empty((x.shape[0], w.shape[0]), dtype=x.dtype, device=x.device)
        if out.numel():
            args = (x, w, bias.contiguous(), mul, out)
            launch(choose(args), args)
        return out
