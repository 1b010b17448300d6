import math

import torch
import torch.nn as nn
from numba import cuda, float32

THREADS = 256


@cuda.jit(device=True, inline=True)
def _fold(buf, t):
    step = THREADS // 2
    while step > 0:
        if t < step:
            buf[t] += buf[t + step]
        cuda.syncthreads()
        step //= 2


@cuda.jit
def row_norms(x, norms):
    buf = cuda.shared.array(THREADS, float32)
    row, t = cuda.blockIdx.x, cuda.threadIdx.x
    acc = float32(0.0)
    for c in range(t, x.shape[1], THREADS):
        acc += x[row, c] * x[row, c]
    buf[t] = acc
    cuda.syncthreads()
    _fold(buf, t)
    if t == 0:
        norms[row] = math.sqrt(buf[0])


@cuda.jit
def divide(x, norms, y):
    row = cuda.blockIdx.x
    c = cuda.blockIdx.y * cuda.blockDim.x + cuda.threadIdx.x
    if c < x.shape[1]:
        y[row, c] = x[row, c] / norms[row]


class ModelNew(nn.Module):
    """L2 normalisation along dim 1."""

    def __init__(self):
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().contiguous()
        norms = torch.empty(x.shape[0], device=x.device)
        y = torch.empty_like(x)
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        dx, dn, dy = (cuda.as_cuda_array(t) for t in (x, norms, y))
        row_norms[x.shape[0], THREADS, stream](dx, dn)
        columns = (x.shape[1] + THREADS - 1) // THREADS
        divide[(x.shape[0], columns), THREADS, stream](dx, dn, dy)
        return y
