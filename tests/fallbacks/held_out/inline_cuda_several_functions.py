import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CUDA = r"""
#include <torch/extension.h>
#include <cuda_bf16.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAGuard.h>

__device__ __forceinline__ float warp_sum(float v) {
    #pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    return v;
}

template <int WARPS>
__device__ float block_sum(float v) {
    __shared__ float part[WARPS];
    v = warp_sum(v);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    float t = 0.f;
    #pragma unroll
    for (int i = 0; i < WARPS; ++i) t += part[i];
    return t;
}

template <int WARPS>
__global__ void ln_block(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* b,
                         __nv_bfloat16* y, int64_t stride, int n, float eps) {
    const __nv_bfloat16* row = x + blockIdx.x * stride;
    float s = 0.f;
    for (int i = threadIdx.x; i < n; i += WARPS * 32) s += __bfloat162float(row[i]);
    float mean = block_sum<WARPS>(s) / n;
    float q = 0.f;
    for (int i = threadIdx.x; i < n; i += WARPS * 32) {
        float d = __bfloat162float(row[i]) - mean;
        q += d * d;
    }
    float inv = rsqrtf(block_sum<WARPS>(q) / n + eps);
    for (int i = threadIdx.x; i < n; i += WARPS * 32) {
        float v = (__bfloat162float(row[i]) - mean) * inv;
        y[blockIdx.x * int64_t(n) + i] = __float2bfloat16(v * __bfloat162float(w[i]) + __bfloat162float(b[i]));
    }
}

__global__ void ln_warp(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* b,
                        __nv_bfloat16* y, int64_t stride, int rows, int n, float eps) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    float s = 0.f, q = 0.f;
    for (int i = threadIdx.x; i < n; i += 32) s += __bfloat162float(x[row * stride + i]);
    float mean = warp_sum(s) / n;
    for (int i = threadIdx.x; i < n; i += 32) {
        float d = __bfloat162float(x[row * stride + i]) - mean;
        q += d * d;
    }
    float inv = rsqrtf(warp_sum(q) / n + eps);
    for (int i = threadIdx.x; i < n; i += 32) {
        float v = (__bfloat162float(x[row * stride + i]) - mean) * inv;
        y[int64_t(row) * n + i] = __float2bfloat16(v * __bfloat162float(w[i]) + __bfloat162float(b[i]));
    }
}

static const __nv_bfloat16* read(const torch::Tensor& t) {
    return reinterpret_cast<const __nv_bfloat16*>(t.data_ptr<at::BFloat16>());
}

torch::Tensor layer_norm_fwd(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps) {
    TORCH_CHECK(x.is_cuda() && x.dim() == 2, "x: CUDA matrix");
    TORCH_CHECK(x.scalar_type() == at::kBFloat16, "bf16 only");
    const at::cuda::OptionalCUDAGuard guard(device_of(x));
    auto y = torch::empty({x.size(0), x.size(1)}, x.options());
    int rows = x.size(0), n = x.size(1);
    if (rows == 0) return y;
    auto out = reinterpret_cast<__nv_bfloat16*>(y.data_ptr<at::BFloat16>());
    auto stream = at::cuda::getCurrentCUDAStream();
    if (n <= 512) {
        dim3 block(32, 4);
        ln_warp<<<(rows + 3) / 4, block, 0, stream>>>(read(x), read(w), read(b), out, x.stride(0), rows, n, eps);
    } else {
        ln_block<8><<<rows, 256, 0, stream>>>(read(x), read(w), read(b), out, x.stride(0), n, eps);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}

int64_t version() { return 3; }
"""

DECLARATIONS = """
#include <torch/extension.h>
torch::Tensor layer_norm_fwd(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps);
int64_t version();
"""

ext = load_inline(
    name="heldout_layer_norm",
    cpp_sources=[DECLARATIONS],
    cuda_sources=[CUDA],
    functions=["layer_norm_fwd", "version"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
    verbose=False,
)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps
        if ext.version() < 3:
            raise RuntimeError("a stale build")

    def forward(self, x, weight, bias):
        x = x if x.stride(-1) == 1 else x.contiguous()
        return ext.layer_norm_fwd(x, weight.contiguous(), bias.contiguous(), self.eps)
