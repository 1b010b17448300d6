import functools

import cupy as cp
import torch
from torch import nn

SOURCE = r"""
#include <cuda_bf16.h>
template <int VEC>
__global__ void sum_experts(const __nv_bfloat16* x, __nv_bfloat16* y, long long k, long long h, float factor) {
    long long t = blockIdx.x;
    for (long long c = (blockIdx.y * blockDim.x + threadIdx.x) * VEC; c < h; c += (long long)gridDim.y * blockDim.x * VEC) {
        float acc[VEC] = {};
        for (long long j = 0; j < k; ++j)
            for (int v = 0; v < VEC; ++v)
                if (c + v < h) acc[v] += __bfloat162float(x[(t * k + j) * h + c + v]);
        for (int v = 0; v < VEC; ++v)
            if (c + v < h) y[t * h + c + v] = __float2bfloat16(acc[v] * factor);
    }
}
"""

NAMES = {vec: f"sum_experts<{vec}>" for vec in (1, 2, 4, 8)}


@functools.cache
def module() -> cp.RawModule:
    return cp.RawModule(code=SOURCE, options=("-std=c++17",), name_expressions=list(NAMES.values()))


def kernel_for(width: int):
    vec = next(v for v in sorted(NAMES, reverse=True) if width % v == 0)
    return module().get_function(NAMES[vec]), vec


class Model(nn.Module):
    def __init__(self, routed_scaling_factor=1.0):
        super().__init__()
        self.factor = routed_scaling_factor

    def forward(self, expert_outputs):
        x = expert_outputs.contiguous()
        T, K, H = x.shape
        out = torch.empty((T, H), dtype=x.dtype, device=x.device)
        if T == 0:
            return out
        kernel, vec = kernel_for(H)
        blocks = min(65535, -(-H // (256 * vec)))
        stream = cp.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            kernel((T, blocks), (256,), (x.data_ptr(), out.data_ptr(), K, H, cp.float32(self.factor)))
        return out
