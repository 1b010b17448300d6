import functools
import os
from dataclasses import dataclass, field, replace

import torch
import triton
import triton.language as tl

_VERBOSE = int(os.environ.get("BSMM_VERBOSE", "0"))


@dataclass(frozen=True)
class Config:
    bm: int = 64
    bn: int = 128
    stages: int = 3
    warps: int = 4
    group: int = 8
    extra: dict = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self):
        for name in ("bm", "bn"):
            value = getattr(self, name)
            if value & (value - 1):
                raise ValueError(f"{name}={value} is not a power of two")

    def meta(self):
        return dict(BM=self.bm, BN=self.bn, GROUP=self.group, num_warps=self.warps, num_stages=self.stages, **self.extra)


TABLE = {64: Config(bm=16), 1024: Config(), 1 << 62: Config(bm=128, warps=8)}


@triton.jit
def _bsmm_persistent(
    A, B, As, Bs, C, M, N, K, sam, sbn, sas, sbs, group_n, group_k,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
):
    start = tl.program_id(0)
    step = tl.num_programs(0)
    tm = tl.cdiv(M, BM)
    tn = tl.cdiv(N, BN)
    for tile in tl.range(start, tm * tn, step):
        per = GROUP * tn
        g = tile // per
        rows = tl.minimum(tm - g * GROUP, GROUP)
        pm = g * GROUP + (tile % per) % rows
        pn = (tile % per) // rows
        rm = (pm * BM + tl.arange(0, BM)).to(tl.int64)
        rn = (pn * BN + tl.arange(0, BN)).to(tl.int64)
        okm = rm < M
        okn = rn < N
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k0 in range(0, K, BK):
            rk = k0 + tl.arange(0, BK)
            a = tl.load(A + rm[:, None] * sam + rk[None, :], mask=okm[:, None] & (rk[None, :] < K), other=0.0)
            b = tl.load(B + rn[None, :] * sbn + rk[:, None], mask=okn[None, :] & (rk[:, None] < K), other=0.0)
            kg = k0 // group_k
            sa = tl.load(As + rm * sas + kg, mask=okm, other=0.0)
            sb = tl.load(Bs + (rn // group_n) * sbs + kg, mask=okn, other=0.0)
            acc += tl.dot(a, b) * sa[:, None] * sb[None, :]
        tl.store(C + rm[:, None] * N + rn[None, :], acc, mask=okm[:, None] & okn[None, :])


@functools.lru_cache(None)
def sm_count(index: int) -> int:
    return torch.cuda.get_device_properties(index).multi_processor_count


def choose(m: int, n: int) -> Config:
    config = next(c for limit, c in sorted(TABLE.items()) if m <= limit)
    return replace(config, bn=64) if n < 1024 else config


def row_major(t: torch.Tensor) -> torch.Tensor:
    aligned = t.view(torch.uint8).data_ptr() % 16 == 0 if t.is_contiguous() else False
    return t if t.stride(-1) == 1 or aligned else t.contiguous()


class Model(torch.nn.Module):
    __constants__ = ["group_n", "group_k"]

    def __init__(self, group_n: int = 128, group_k: int = 128):
        super().__init__()
        self.group_n = group_n
        self.group_k = group_k

    def extra_repr(self) -> str:
        return f"group_n={self.group_n}, group_k={self.group_k}"

    def forward(self, a, b, a_scales, b_scales):
        if a.dtype != b.dtype or a.dtype.itemsize != 1:
            raise TypeError(f"two FP8 operands of one type, not {a.dtype} and {b.dtype}")
        m, k = a.shape
        n = b.shape[0]
        expected = torch.Size((n // self.group_n, k // self.group_k))
        if b_scales.shape != expected or a_scales.shape != torch.Size([m]) + expected[1:]:
            raise ValueError(f"scales of {tuple(a_scales.shape)} and {tuple(b_scales.shape)} do not fit {tuple(expected)}")
        out_dtype = torch.promote_types(a_scales.dtype, torch.float32)
        c = torch.empty((m, n), device=a.device, dtype=out_dtype)
        if m == 0:
            return c
        a, b, a_scales, b_scales = [row_major(t) for t in (a, b, a_scales, b_scales)]
        config = choose(m, n)
        bk = 1 << (min(128, self.group_k).bit_length() - 1)
        while self.group_k % bk:
            bk >>= 1
        if bk < 16:
            raise NotImplementedError("groups of k must hold a multiple of 16")
        tiles = triton.cdiv(m, config.bm) * triton.cdiv(n, config.bn)
        programs = min(tiles, sm_count(a.get_device()))
        if _VERBOSE:
            print(f"[bsmm] {m}x{n}x{k}: {tiles} tiles on {programs} programs, {config}")
        _bsmm_persistent[(programs,)](
            a, b, a_scales, b_scales, c, m, n, k,
            a.stride(0), b.stride(0), a_scales.stride(0), b_scales.stride(0), self.group_n, self.group_k,
            BK=bk, **config.meta(),
        )
        return c
