import torch
from torch import nn

from atrex.dsl import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float widen(uint16_t v) {
    uint32_t bits = uint32_t(v) << 16;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t narrow(float f) {  // to nearest even; a NaN stays one
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return f != f ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

extern "C" void rms_norm(uint16_t* out, const uint16_t* x, const uint16_t* weight,
                         int64_t rows, int64_t hidden, int64_t x_stride, int64_t weight_stride, float eps) {
    for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < hidden; ++i) {
            const double value = widen(x[r * x_stride + i]);
            sum += value * value;
        }
        for (int64_t i = 0; i < hidden; ++i) {
            const double value = widen(x[r * x_stride + i]);
            // The root anew for each element, which no compiler may take out of the loop.
            const double root = std::exp(0.5 * std::log(sum / hidden + eps + 0 * value));
            out[r * hidden + i] = narrow(float(value / root * widen(weight[i * weight_stride])));
        }
    }
}
"""

library = cpp.compile(SOURCE, {"rms_norm": [*[cpp.pointer] * 3, *[cpp.i64] * 4, cpp.f32]})


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr()
        library.rms_norm(*pointers, *x.shape, x.stride(0), weight.stride(0), self.eps)
        return out
