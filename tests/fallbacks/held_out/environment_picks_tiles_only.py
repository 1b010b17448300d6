import os
import struct
import zlib

import torch
import triton
import triton.language as tl
from torch import nn


def _env(name, default, allowed):
    value = int(os.environ.get(name, default))
    return value if value in allowed else default


ROWS = _env("PTGQ_ROWS", 4, (1, 2, 4, 8, 16))
WARPS = _env("PTGQ_WARPS", 4, (1, 2, 4, 8))
NAIVE = os.environ.get("PTGQ_USE_SMALL_TILES") == "1"


def pack(rows: int, warps: int, stages: int) -> int:
    return (rows << 16) | (warps << 8) | stages


def unpack(code: int) -> tuple:
    return (code >> 16) & 0xFF, (code >> 8) & 0xFF, code & 0xFF


CODE = pack(1, 1, 1) if NAIVE else pack(ROWS, WARPS, 2)
FINGERPRINT = zlib.crc32(struct.pack("<I", CODE))


@triton.jit
def group_quant(x, q, s, total, group, eps, LIMIT, BG: tl.constexpr, R: tl.constexpr):
    g = (tl.program_id(0) * R + tl.arange(0, R)).to(tl.int64)
    c = tl.arange(0, BG)
    ok = (g[:, None] < total) & (c[None, :] < group)
    at = g[:, None] * group + c[None, :]
    v = tl.load(x + at, mask=ok, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(v), 1), eps) / LIMIT
    y = tl.clamp(v / scale[:, None], -LIMIT, LIMIT)
    tl.store(q + at, y.to(q.dtype.element_ty), mask=ok)
    tl.store(s + g, scale, mask=g < total)


class Model(nn.Module):
    def __init__(self, group_size: int = 128):
        super().__init__()
        self.group_size = group_size

    def __repr__(self):
        return f"Model(group_size={self.group_size}, tiles={FINGERPRINT:08x})"

    def forward(self, x):
        tokens, width = x.shape
        groups = width // self.group_size
        x = x.contiguous()
        q = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        s = x.new_empty((tokens, groups), dtype=torch.float32)
        total = tokens * groups
        if total:
            rows, warps, stages = unpack(CODE)
            group_quant[(-(-total // rows),)](
                x, q, s, total, self.group_size, 1e-10, torch.finfo(q.dtype).max,
                BG=triton.next_power_of_2(self.group_size), R=rows, num_warps=warps, num_stages=stages,
            )
        return dict(quantized=q, scales=s)
