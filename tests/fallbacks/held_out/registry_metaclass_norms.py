import abc
from typing import ClassVar, List, Type

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def ln_one_block(x, w, b, y, sx, N, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < N
    v = tl.load(x + r * sx + c, mask=ok, other=0.0).to(tl.float32)
    mu = tl.sum(v, 0) / N
    dv = tl.where(ok, v - mu, 0.0)
    inv = 1.0 / tl.sqrt(tl.sum(dv * dv, 0) / N + eps)
    out = dv * inv * tl.load(w + c, mask=ok, other=0.0).to(tl.float32) + tl.load(b + c, mask=ok, other=0.0).to(tl.float32)
    tl.store(y + r * N + c, out.to(y.dtype.element_ty), mask=ok)


@triton.jit
def ln_looped(x, w, b, y, sx, N, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    s = tl.zeros((BLOCK,), tl.float32)
    for c0 in range(0, N, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        s += tl.load(x + r * sx + c, mask=c < N, other=0.0).to(tl.float32)
    mu = tl.sum(s, 0) / N
    q = tl.zeros((BLOCK,), tl.float32)
    for c0 in range(0, N, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        d = tl.where(c < N, tl.load(x + r * sx + c, mask=c < N, other=0.0).to(tl.float32) - mu, 0.0)
        q += d * d
    inv = 1.0 / tl.sqrt(tl.sum(q, 0) / N + eps)
    for c0 in range(0, N, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        ok = c < N
        v = (tl.load(x + r * sx + c, mask=ok, other=0.0).to(tl.float32) - mu) * inv
        v = v * tl.load(w + c, mask=ok, other=0.0).to(tl.float32) + tl.load(b + c, mask=ok, other=0.0).to(tl.float32)
        tl.store(y + r * N + c, v.to(y.dtype.element_ty), mask=ok)


class StrategyMeta(abc.ABCMeta):
    registry: ClassVar[List[Type["Strategy"]]] = []

    def __new__(mcls, name, bases, namespace, **kwargs):
        cls = super().__new__(mcls, name, bases, namespace, **kwargs)
        if not namespace.get("__abstract__", False):
            mcls.registry.append(cls)
        return cls

    def __lt__(cls, other):
        return cls.priority < other.priority


class Strategy(metaclass=StrategyMeta):
    __abstract__ = True
    __slots__ = ("eps",)
    priority: ClassVar[int] = 0

    def __init_subclass__(cls, *, priority: int = 0, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.priority = priority

    def __init__(self, eps: float) -> None:
        self.eps = eps

    @classmethod
    @abc.abstractmethod
    def applies(cls, width: int) -> bool: ...

    @abc.abstractmethod
    def launch(self, x, weight, bias, y, block: int) -> None: ...

    def __call__(self, x, weight, bias):
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        if len(x):
            self.launch(x, weight, bias, y, min(8192, triton.next_power_of_2(x.shape[1])))
        return y


class OneBlock(Strategy, priority=1):
    __slots__ = ()

    @classmethod
    def applies(cls, width):
        return width <= 8192

    def launch(self, x, weight, bias, y, block):
        ln_one_block[(len(x),)](x, weight, bias, y, x.stride(0), x.shape[1], self.eps, BLOCK=block)


class Looped(Strategy, priority=2):
    __slots__ = ()

    @classmethod
    def applies(cls, width):
        return True

    def launch(self, x, weight, bias, y, block):
        ln_looped[(len(x),)](x, weight, bias, y, x.stride(0), x.shape[1], self.eps, BLOCK=block, num_warps=8)

    def __call__(self, x, weight, bias):
        return super().__call__(x, weight, bias)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.strategies = {cls: cls(eps) for cls in sorted(StrategyMeta.registry)}

    def forward(self, x, weight, bias):
        if x.stride(1) != 1:
            x = x.contiguous()
        chosen = next(s for cls, s in self.strategies.items() if cls.applies(x.shape[1]))
        return chosen(x, weight.contiguous(), bias.contiguous())
