import cupy as cp
import torch
from torch import nn

_SOURCE = r"""
#include <cuda_bf16.h>
extern "C" __global__ void layer_norm(__nv_bfloat16* y, const __nv_bfloat16* x, const __nv_bfloat16* w,
                                      const __nv_bfloat16* b, int n, float eps) {
    // One warp a row.
    const __nv_bfloat16* row = x + (long long)blockIdx.x * n;
    float s = 0, q = 0;
    for (int i = threadIdx.x; i < n; i += 32) s += __bfloat162float(row[i]);
    for (int o = 16; o; o /= 2) s += __shfl_xor_sync(0xffffffff, s, o);
    const float mean = s / n;
    for (int i = threadIdx.x; i < n; i += 32) { float d = __bfloat162float(row[i]) - mean; q += d * d; }
    for (int o = 16; o; o /= 2) q += __shfl_xor_sync(0xffffffff, q, o);
    const float rstd = rsqrtf(q / n + eps);
    for (int i = threadIdx.x; i < n; i += 32)
        y[(long long)blockIdx.x * n + i] = __float2bfloat16(
            (__bfloat162float(row[i]) - mean) * rstd * __bfloat162float(w[i]) + __bfloat162float(b[i]));
}
"""
_layer_norm = cp.RawKernel(_SOURCE, "layer_norm", options=("-std=c++17",))


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = cp.float32(eps)

    def forward(self, x, weight, bias):
        x, weight, bias = x.contiguous(), weight.contiguous(), bias.contiguous()
        y = torch.empty_like(x)
        n = x.shape[-1]
        rows = x.numel() // n
        stream = cp.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
        with stream:
            pointers = y.data_ptr(), x.data_ptr(), weight.data_ptr(), bias.data_ptr()
            _layer_norm((rows,), (32,), (*pointers, cp.int32(n), self.eps))
        return y
