import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _l2_rows(out, x, H, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    v = tl.load(x + row * H + col, col < H, other=0.0).to(tl.float32)
    tl.store(out + row * H + col, (v / tl.sqrt(tl.sum(v * v, axis=0) + eps)).to(tl.bfloat16), col < H)


@torch.library.custom_op("atrex_rows::l2_normalise", mutates_args=())
def l2_normalise(x: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    if x.shape[0] > 0:
        _l2_rows[(x.shape[0],)](out, x, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]))
    return out


@l2_normalise.register_fake
def _(x, eps):
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = float(eps)

    def forward(self, x):
        return torch.ops.atrex_rows.l2_normalise(x.contiguous(), self.eps)
