import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <cuda_bf16.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void rms_kernel(__nv_bfloat16* out, const __nv_bfloat16* x, const __nv_bfloat16* w, int H, float eps) {
    __shared__ float part[32];
    const __nv_bfloat16* row = x + (long long)blockIdx.x * H;
    float sum = 0;
    for (int i = threadIdx.x; i < H; i += blockDim.x) { float v = __bfloat162float(row[i]); sum += v * v; }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0;
    for (int i = 0; i < blockDim.x / 32; ++i) sum += part[i];
    const float scale = rsqrtf(sum / H + eps);
    for (int i = threadIdx.x; i < H; i += blockDim.x)
        out[(long long)blockIdx.x * H + i] = __float2bfloat16(__bfloat162float(row[i]) * scale * __bfloat162float(w[i]));
}

torch::Tensor rms_norm(torch::Tensor x, torch::Tensor w, double eps) {
    auto out = torch::empty_like(x);
    auto stream = at::cuda::getCurrentCUDAStream();
    rms_kernel<<<x.size(0), 256, 0, stream>>>(
        (__nv_bfloat16*)out.data_ptr(), (const __nv_bfloat16*)x.data_ptr(),
        (const __nv_bfloat16*)w.data_ptr(), x.size(1), eps);
    return out;
}
"""

module = load_inline(
    name="rms_norm_rows",
    cpp_sources="torch::Tensor rms_norm(torch::Tensor x, torch::Tensor w, double eps);",
    cuda_sources=CUDA,
    functions=["rms_norm"],
    extra_cuda_cflags=["-O3"],
)


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        return module.rms_norm(x.contiguous(), weight.contiguous(), self.eps)
