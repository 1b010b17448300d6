from __future__ import annotations

import functools
from typing import (
    TYPE_CHECKING, Annotated, Any, Callable, Generic, Literal, Protocol, TypedDict, TypeVar, Union, cast, overload,
    runtime_checkable,
)

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Mapping

Rows = Annotated[int, "rows"]
T_co = TypeVar("T_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


@triton.jit
def add_rms(x, r, w, y, s, sx, sr, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < N
    v = tl.load(x + row * sx + c, mask=ok, other=0.0).to(tl.float32) + tl.load(r + row * sr + c, mask=ok, other=0.0).to(tl.float32)
    v = v.to(tl.bfloat16)
    tl.store(s + row * N + c, v, mask=ok)
    v = v.to(tl.float32)
    v = v * tl.rsqrt(tl.sum(v * v, 0) / N + eps) * tl.load(w + c, mask=ok, other=0.0).to(tl.float32)
    tl.store(y + row * N + c, v.to(tl.bfloat16), mask=ok)


class Outputs(TypedDict):
    out: Tensor
    residual: Tensor


class Meta(TypedDict, total=False):
    BLOCK: int
    num_warps: Literal[1, 2, 4, 8, 16]


@runtime_checkable
class Runner(Protocol[T_co]):
    def run(self, x: Tensor, residual: Tensor, weight: Tensor) -> T_co: ...


def logged(fn: F) -> F:
    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        inner.calls += 1  # type: ignore[attr-defined]
        return fn(*args, **kwargs)

    inner.calls = 0  # type: ignore[attr-defined]
    return cast(F, inner)


class Box(Generic[T_co]):
    def __init__(self, value: T_co) -> None:
        self._value = value

    def get(self) -> T_co:
        return self._value


@overload
def dense(t: Tensor) -> Tensor: ...
@overload
def dense(t: None) -> None: ...
def dense(t: Union[Tensor, None]) -> Union[Tensor, None]:
    if t is None or t.stride(-1) == 1:
        return t
    return t.contiguous()


class TritonRunner:
    def __init__(self, eps: float) -> None:
        self.eps: Box[float] = Box(eps)

    @staticmethod
    def meta(width: int) -> Meta:
        block = triton.next_power_of_2(width)
        return {"BLOCK": block, "num_warps": 4 if block <= 2048 else 8 if block <= 8192 else 16}

    @logged
    def run(self, x: Tensor, residual: Tensor, weight: Tensor) -> Outputs:
        rows: Rows
        rows, width = x.shape
        result: Outputs = {
            "out": torch.empty((rows, width), dtype=x.dtype, device=x.device),
            "residual": torch.empty((rows, width), dtype=x.dtype, device=x.device),
        }
        if rows:
            add_rms[(rows,)](
                x, residual, weight, *result.values(), x.stride(0), residual.stride(0), width, self.eps.get(), **self.meta(width)
            )
        return result


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.runner: Runner[Outputs] = TritonRunner(eps)
        assert isinstance(self.runner, Runner)

    def forward(self, x: Tensor, residual: Tensor, weight: Tensor) -> Mapping[str, Tensor]:
        return self.runner.run(dense(x), dense(residual), cast(Tensor, dense(weight)))
