import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _rms_bf16(o, x, w, n, s, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * s + c, c < n, other=0.0).to(tl.float32)
    g = tl.load(w + c, c < n, other=0.0).to(tl.float32)
    k = 1.0 / tl.sqrt(tl.sum(v * v, 0) / n + eps)
    tl.store(o + r * n + c, (v * k * g).to(tl.bfloat16), c < n)


@triton.jit
def _rms_fp16(o, x, w, n, s, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * s + c, c < n, other=0.0).to(tl.float32)
    g = tl.load(w + c, c < n, other=0.0).to(tl.float32)
    k = 1.0 / tl.sqrt(tl.sum(v * v, 0) / n + eps)
    tl.store(o + r * n + c, (v * k * g).to(tl.float16), c < n)


KERNELS = {torch.bfloat16: _rms_bf16, torch.float16: _rms_fp16}


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        if x.dtype not in KERNELS:
            raise NotImplementedError(f"no kernel for {x.dtype}")
        x, weight = x.contiguous(), weight.contiguous()
        rows, width = x.shape
        out = torch.empty_like(x)
        if rows > 0:
            KERNELS[x.dtype][(rows,)](
                out, x, weight, width, x.stride(0), self.eps, B=triton.next_power_of_2(width), num_warps=8
            )
        return out
