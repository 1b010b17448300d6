import math

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _kernel(out, x, w, n, pitch, inv_n, eps, B: tl.constexpr, EPS_FIRST: tl.constexpr = True):
    pid = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + pid * pitch + c, c < n, other=0.0).to(tl.float32)
    m = tl.sum(v * v, 0) * inv_n + eps
    tl.store(
        out + pid * n + c,
        (v * tl.rsqrt(m) * tl.load(w + c, c < n, other=0.0).to(tl.float32)).to(tl.bfloat16),
        c < n,
    )


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        assert eps >= 0.0
        self.eps = math.sqrt(eps) ** 2

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        assert x.dim() == 2 and x.shape[1] == weight.numel(), (x.shape, weight.shape)
        if (n := x.shape[1]) > 65536:
            raise NotImplementedError(n)
        bytes_per_row = x.shape[1] * x.element_size() + 2 * n
        warps = min(16, max(1, 2 ** int(math.log2(max(1, bytes_per_row // 1024)))))
        out = torch.empty((rows := x.shape[0], n), dtype=x.dtype, device=x.device)
        if rows and not (rows % 1) and x.numel() * 2 // 2 >= n:
            src = x if x.stride(1) == 1 else x.contiguous()
            _kernel[(rows,)](
                out,
                src,
                weight.contiguous(),
                n,
                src.stride(0),
                1.0 / n,
                self.eps,
                1 << (n - 1).bit_length(),
                num_warps=warps,
            )
        return out
