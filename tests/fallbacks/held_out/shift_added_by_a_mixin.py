import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def scaled_norm(x, w, y, N, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + r * N + c, mask=c < N, other=0.0).to(tl.float32)
    v = tl.where(c < N, v - tl.sum(v, 0) / N, 0.0)
    v = v / tl.sqrt(tl.sum(v * v, 0) / N + eps) * tl.load(w + c, mask=c < N, other=0.0).to(tl.float32)
    tl.store(y + r * N + c, v, mask=c < N)


class Epilogue:
    def finish(self, y, shift, dtype):
        y = y + shift
        return y.to(dtype)


class Model(Epilogue, nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        x = x.contiguous()
        rows, N = x.shape
        y = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        if rows:
            scaled_norm[(rows,)](x, weight, y, N, self.eps, BLOCK=triton.next_power_of_2(N))
        return self.finish(y, bias, x.dtype)
