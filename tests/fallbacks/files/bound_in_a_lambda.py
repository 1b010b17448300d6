import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _combine(out, x, T, H, factor, K: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    token, col = at // H, at % H
    acc = tl.zeros([B], tl.float32)
    for k in tl.static_range(K):
        acc += tl.load(x + (token * K + k) * H + col, at < T * H, other=0.0).to(tl.float32)
    tl.store(out + at, (acc * factor).to(tl.bfloat16), at < T * H)


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0) -> None:
        super().__init__()
        self.launch = lambda out, x: _combine[(triton.cdiv(out.numel(), 512),)](
            out, x, out.shape[0], out.shape[1], routed_scaling_factor, K=x.shape[1], B=512
        )

    def forward(self, expert_outputs):
        T, _, H = expert_outputs.shape
        out = torch.empty(T, H, dtype=expert_outputs.dtype, device=expert_outputs.device)
        if T:
            self.launch(out, expert_outputs.contiguous())
        return out
