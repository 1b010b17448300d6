import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <cuda_bf16.h>

__global__ void apply(const __nv_bfloat16* x, const float* inv, const __nv_bfloat16* w, __nv_bfloat16* y, int n) {
    for (int c = threadIdx.x; c < n; c += blockDim.x) {
        int64_t at = int64_t(blockIdx.x) * n + c;
        y[at] = __float2bfloat16(__bfloat162float(x[at]) * inv[blockIdx.x] * __bfloat162float(w[c]));
    }
}

torch::Tensor rms(torch::Tensor x, torch::Tensor w, double eps) {
    auto inv = x.to(torch::kFloat32).pow(2).mean(-1).add_(eps).rsqrt_();
    auto y = torch::empty_like(x);
    if (x.size(0) == 0) return y;
    apply<<<x.size(0), 256>>>(
        reinterpret_cast<const __nv_bfloat16*>(x.data_ptr()), inv.data_ptr<float>(),
        reinterpret_cast<const __nv_bfloat16*>(w.data_ptr()), reinterpret_cast<__nv_bfloat16*>(y.data_ptr()), x.size(1));
    return y;
}
"""

native = load_inline(
    "heldout_rms_apply",
    cpp_sources="torch::Tensor rms(torch::Tensor x, torch::Tensor w, double eps);",
    cuda_sources=SOURCE,
    functions=["rms"],
)


class Model(torch.nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        return native.rms(x.contiguous(), weight.contiguous(), self.eps)
