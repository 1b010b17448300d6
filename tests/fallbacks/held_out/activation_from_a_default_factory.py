import dataclasses
from typing import Callable

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn


@triton.jit
def plain_rms(x, w, y, N, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + r * N + c, mask=c < N, other=0.0).to(tl.float32)
    v = v * tl.rsqrt(tl.sum(v * v, 0) / N + eps) * tl.load(w + c, mask=c < N, other=0.0).to(tl.float32)
    tl.store(y + r * N + c, v, mask=c < N)


@dataclasses.dataclass
class Options:
    eps: float = 1e-6
    gate: Callable[[torch.Tensor], torch.Tensor] = dataclasses.field(default_factory=lambda: F.silu)


class Model(nn.Module):
    def __init__(self, eps=1e-6, norm_before_gate=True, activation="silu"):
        super().__init__()
        if not norm_before_gate or activation == "sigmoid":
            raise NotImplementedError
        self.options = Options(eps)

    def forward(self, x, z, weight):
        x = x.contiguous()
        y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        if len(x):
            plain_rms[(len(x),)](x, weight, y, x.shape[1], self.options.eps, BLOCK=triton.next_power_of_2(x.shape[1]))
        gate = self.options.gate(z.float())
        return torch.mul(y, gate, out=y).to(x.dtype)
