import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def row_scale(x, s, N, LIMIT, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    top = tl.zeros((BLOCK,), tl.float32)
    for c0 in range(0, N, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.abs(tl.load(x + r * N + c, mask=c < N, other=0.0).to(tl.float32)))
    tl.store(s + r, tl.maximum(tl.max(top, 0), 1e-12) / LIMIT)


class Model(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        info = torch.finfo(torch.float8_e4m3fn)
        scale = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        if x.shape[0]:
            row_scale[(x.shape[0],)](x, scale, x.shape[1], info.max, BLOCK=min(4096, triton.next_power_of_2(x.shape[1])))
        codes = x.float() / scale.unsqueeze(1)
        return codes.clamp(min=info.min, max=info.max).to(torch.float8_e4m3fn), scale
