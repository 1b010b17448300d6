import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def encode(q, x, scales, total, SIZE, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, i < total, other=0.0).to(tl.float32)
    s = tl.load(scales + i // SIZE, i < total, other=1.0)
    v = tl.minimum(tl.maximum(tl.div_rn(v, s), -448.0), 448.0)
    tl.store(q + i, v.to(tl.float8e4nv), i < total)


class Model(nn.Module):
    def __init__(self, group_size=128):
        super().__init__()
        self.group_size = group_size

    def forward(self, x):
        x = x.contiguous()
        T, H = x.shape
        groups = x.view(T, H // self.group_size, self.group_size)
        scales = (groups.float().abs().amax(dim=-1) / 448.0).clamp(min=1e-10)
        q = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        if x.numel():
            encode[(triton.cdiv(x.numel(), 2048),)](q, x, scales, x.numel(), self.group_size, BLOCK=2048)
        return {"quantized": q, "scales": scales}
