import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune(
    configs=[triton.Config({"ROWS": r}, num_warps=w) for r in (1, 2, 4) for w in (2, 4)],
    key=["T", "H"],
)
@triton.heuristics(values={"BLOCK": lambda a: triton.next_power_of_2(a["H"])})
@triton.jit
def _l2(y, x, T, H, xs, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    m = (r < T) & (c < H)
    v = tl.load(x + r * xs + c, m, other=0.0).to(tl.float32)
    s = tl.sum(v * v, axis=1, keep_dims=True)
    tl.store(y + r * H + c, (v * tl.rsqrt(s + eps)).to(tl.bfloat16), m)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.hidden_size, self.eps = hidden_size, eps

    def forward(self, x):
        assert x.shape[-1] == self.hidden_size, "unexpected width"
        x = x if x.stride(1) == 1 else x.contiguous()
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if x.shape[0] == 0:
            return y
        _l2[lambda meta: (triton.cdiv(x.shape[0], meta["ROWS"]),)](
            y, x, x.shape[0], x.shape[1], x.stride(0), self.eps
        )
        return y
