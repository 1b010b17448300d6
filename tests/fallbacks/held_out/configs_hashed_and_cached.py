import dataclasses
import enum
import hashlib
import json
from typing import Any, Callable, ClassVar, Dict, Tuple

import torch
import triton
import triton.language as tl
from torch import nn


class Flag(enum.IntFlag):
    NONE = 0
    NORM_FIRST = 1
    SIGMOID_ONLY = 2
    LOOPED = 4


@triton.jit
def _act(z, FLAGS: tl.constexpr):
    s = 1.0 / (1.0 + tl.exp(-z))
    if FLAGS & 2:
        return s
    return z * s


@triton.jit
def gated_norm(x_ptr, z_ptr, w_ptr, o_ptr, sx, sz, so, R, H, eps, FLAGS: tl.constexpr, ROWS: tl.constexpr, BH: tl.constexpr):
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    c = tl.arange(0, BH)
    ok = (r[:, None] < R) & (c[None, :] < H)
    x = tl.load(x_ptr + r[:, None] * sx + c[None, :], mask=ok, other=0.0).to(tl.float32)
    z = tl.load(z_ptr + r[:, None] * sz + c[None, :], mask=ok, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + c, mask=c < H, other=0.0).to(tl.float32)[None, :]
    if FLAGS & 1:
        inv = tl.rsqrt(tl.sum(x * x, 1) / H + eps)
        y = x * inv[:, None] * w * _act(z, FLAGS)
    else:
        x = x * _act(z, FLAGS)
        inv = tl.rsqrt(tl.sum(tl.where(ok, x * x, 0.0), 1) / H + eps)
        y = x * inv[:, None] * w
    tl.store(o_ptr + r[:, None] * so + c[None, :], y.to(o_ptr.dtype.element_ty), mask=ok)


@dataclasses.dataclass(frozen=True)
class LaunchConfig:
    hidden: int
    flags: int
    rows_per_program: int = 1
    num_warps: int = 4

    @classmethod
    def for_shape(cls, hidden: int, flags: int) -> "LaunchConfig":
        padded = triton.next_power_of_2(hidden)
        rows = max(1, min(8, 2048 // padded))
        return cls(hidden, flags, rows, min(16, max(1, padded // 512)))

    def fingerprint(self) -> str:
        blob = json.dumps(dataclasses.asdict(self), sort_keys=True).encode()
        return hashlib.sha1(blob).hexdigest()[:12]

    def __hash__(self) -> int:
        return int(self.fingerprint(), 16)


class LauncherCache:
    _made: ClassVar[Dict[LaunchConfig, Callable[..., Any]]] = {}

    @classmethod
    def get(cls, config: LaunchConfig) -> Callable[..., Any]:
        try:
            return cls._made[config]
        except KeyError:
            cls._made[config] = made = cls._make(config)
            return made

    @staticmethod
    def _make(config: LaunchConfig) -> Callable[..., Any]:
        block = triton.next_power_of_2(config.hidden)

        def launch(x, z, w, out, eps):
            n = x.shape[0]
            gated_norm[(triton.cdiv(n, config.rows_per_program),)](
                x, z, w, out, x.stride(0), z.stride(0), out.stride(0), n, config.hidden, eps,
                FLAGS=config.flags, ROWS=config.rows_per_program, BH=block, num_warps=config.num_warps,
            )
            return out

        launch.__name__ = f"gated_norm_{config.fingerprint()}"
        return launch


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6, norm_before_gate: bool = True, activation: str = "silu"):
        super().__init__()
        self.eps = eps
        flags = Flag.NORM_FIRST if norm_before_gate else Flag.NONE
        flags |= {"silu": Flag.NONE, "swish": Flag.NONE, "sigmoid": Flag.SIGMOID_ONLY}[activation]
        self.flags = int(flags)

    def _normalise(self, *tensors: torch.Tensor) -> Tuple[torch.Tensor, ...]:
        return tuple(t if t.stride(-1) == 1 else t.contiguous() for t in tensors)

    def forward(self, x, z, weight):
        x, z = self._normalise(x, z)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if not x.numel():
            return out
        return LauncherCache.get(LaunchConfig.for_shape(x.shape[1], self.flags))(x, z, weight.contiguous(), out, self.eps)
