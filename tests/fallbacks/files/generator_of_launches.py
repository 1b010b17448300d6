from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _ln_rows(y, x, w, b, C, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * C
    c = tl.arange(0, B)
    v = tl.load(x + r + c, c < C, other=0.0).to(tl.float32)
    mean = tl.sum(v, 0) / C
    v = tl.where(c < C, v - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(v * v, 0) / C + eps)
    v = v * rstd * tl.load(w + c, c < C, other=0.0).to(tl.float32) + tl.load(b + c, c < C, other=0.0).to(
        tl.float32
    )
    tl.store(y + r + c, v.to(tl.bfloat16), c < C)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def _parts(self, y, x, weight, bias, step: int = 65536) -> Iterator[torch.Tensor]:
        C = x.shape[1]
        for i in range(0, x.shape[0], step):
            part, target = x[i : i + step], y[i : i + step]
            _ln_rows[(part.shape[0],)](target, part, weight, bias, C, self.eps, B=triton.next_power_of_2(C))
            yield target

    def forward(self, x, weight, bias):
        flat = x.reshape(-1, x.shape[-1]).contiguous()
        y = torch.empty_like(flat)
        launched = sum(len(part) for part in self._parts(y, flat, weight.contiguous(), bias.contiguous()))
        assert launched == len(flat)
        return y.reshape(x.shape)
