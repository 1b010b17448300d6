import torch
from torch import nn

from atrex.dsl import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
extern "C" void scales(float* out, const float* x, int64_t rows, int64_t n, float eps) {
    for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += double(x[r * n + i]) * x[r * n + i];
        out[r] = float(1 / std::sqrt(sum / n + eps));
    }
}
"""
native = cpp.compile(SOURCE, {"scales": [cpp.pointer, cpp.pointer, cpp.i64, cpp.i64, cpp.f32]})


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        wide = x.float().contiguous()
        scale = torch.empty((len(x), 1), dtype=torch.float32)
        native.scales(scale.data_ptr(), wide.data_ptr(), *wide.shape, self.eps)
        return torch.mul(torch.mul(wide, scale), weight.float()).to(x.dtype)
