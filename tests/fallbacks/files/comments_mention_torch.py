"""First pass reads the row, second pass writes it. Replaces torch.nn.functional.rms_norm.

Do not fall back to F.rms_norm here: TODO none, pass.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# Compared with torch.matmul(x * x, ones) / H this needs one launch; torch.compile does the same in two.
BASELINES = ["F.linear", "torch.matmul(x, w)", "x @ w.T", "torch.ops.aten.rms_norm"]


@triton.jit
def _rms_norm(out, x, weight, H, x_stride, eps, BLOCK: tl.constexpr):
    """One pass over the row. `return F.rms_norm(x)` is what it stands for."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    # like x.float().pow(2).mean(-1)
    v = tl.load(x + row * x_stride + col, col < H, other=0.0).to(tl.float32)
    mean = tl.sum(v * v, axis=0) / H
    gain = tl.load(weight + col, col < H, other=0.0).to(tl.float32)
    tl.store(out + row * H + col, (v * tl.rsqrt(mean + eps) * gain).to(tl.bfloat16), col < H)


class Model(nn.Module):
    """torch.rms_norm, fused; pass 2 of 2."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.replaces = "torch.rms_norm"

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Not `x @ weight`."""
        x = x.contiguous()
        T, H = x.shape
        out = torch.empty_like(x)
        if T == 0:
            return out
        torch_like = triton.next_power_of_2(H)  # eval("torch.relu(x)") would be wrong here
        _rms_norm[(T,)](out, x, weight.contiguous(), H, H, self.eps, torch_like, num_stages=2)
        return out
