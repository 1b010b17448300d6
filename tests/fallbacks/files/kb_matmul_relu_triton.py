import math

import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _mm_relu(
    c, a, b, M, N, K, am, ak, bk, bn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k0 in range(0, K, BLOCK_K):
        k = k0 + tl.arange(0, BLOCK_K)
        x = tl.load(a + m[:, None] * am + k[None, :] * ak, (m[:, None] < M) & (k[None, :] < K), other=0.0)
        y = tl.load(b + k[:, None] * bk + n[None, :] * bn, (k[:, None] < K) & (n[None, :] < N), other=0.0)
        acc += tl.dot(x, y, input_precision="ieee")
    tl.store(c + m[:, None] * N + n[None, :], tl.maximum(acc, 0.0), (m[:, None] < M) & (n[None, :] < N))


class ModelNew(nn.Module):
    def __init__(self, in_features: int = 512, out_features: int = 256):
        super().__init__()
        bound = 1 / math.sqrt(in_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        M, K = x.shape
        N = self.weight.shape[0]
        w = self.weight.t()
        out = torch.empty((M, N), device=x.device, dtype=torch.float32)
        grid = (triton.cdiv(M, 64), triton.cdiv(N, 64))
        _mm_relu[grid](out, x, w, M, N, K, *x.stride(), *w.stride(), 64, 64, 32)
        return out


def get_inputs():
    return [torch.rand(128, 512)]


def get_init_inputs():
    return [512, 256]
