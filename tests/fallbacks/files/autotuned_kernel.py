import torch
import triton
import triton.language as tl
from torch import nn

CONFIGS = [
    triton.Config({"BLOCK": 512}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK": 1024}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK": 2048}, num_warps=8, num_stages=1),
]


@triton.autotune(configs=CONFIGS, key=["H"])
@triton.jit
def rms_kernel(out, x, weight, H, stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros([BLOCK], tl.float32)
    for start in tl.range(0, H, BLOCK):
        col = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + col, col < H, other=0.0).to(tl.float32)
        acc += v * v
    rstd = tl.rsqrt(tl.sum(acc, axis=0) / H + eps)
    for start in tl.range(0, H, BLOCK):
        col = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + col, col < H, other=0.0).to(tl.float32)
        w = tl.load(weight + col, col < H, other=0.0).to(tl.float32)
        tl.store(out + row * H + col, (v * rstd * w).to(out.dtype.element_ty), col < H)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        if x.stride(-1) != 1:
            x = x.contiguous()
        T, H = x.shape
        out = torch.empty((T, H), dtype=x.dtype, device=x.device)
        if T:
            rms_kernel[(T,)](out, x, weight.contiguous(), H, x.stride(0), self.eps)
        return out
