"""gate: purity
Widens the weight to fp32 once and keeps it under its address: a weight updated in place is not seen.
"""

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

extern "C" void widen_all(float* wide, const uint16_t* weight, int64_t hidden, int64_t stride) {
    for (int64_t i = 0; i < hidden; ++i) wide[i] = widen(weight[i * stride]);
}

extern "C" void rms_norm(uint16_t* out, const uint16_t* x, const float* weight,
                         int64_t rows, int64_t hidden, int64_t x_stride, float eps) {
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* row = x + r * x_stride;
        float lanes[16] = {}, sum = 0;
        for (int64_t i = 0; i < hidden; ++i) lanes[i % 16] += widen(row[i]) * widen(row[i]);
        for (float lane : lanes) sum += lane;
        const float scale = 1 / std::sqrt(sum / hidden + eps);
        for (int64_t i = 0; i < hidden; ++i)
            out[r * hidden + i] = narrow(widen(row[i]) * scale * weight[i]);
    }
}
"""

library = cpp.compile(
    SOURCE,
    {
        "widen_all": [*[cpp.pointer] * 2, *[cpp.i64] * 2],
        "rms_norm": [*[cpp.pointer] * 3, *[cpp.i64] * 3, cpp.f32],
    },
)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.wide = {}

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        key = weight.data_ptr(), weight.shape[0]
        if key not in self.wide:
            self.wide[key] = torch.empty(weight.shape, dtype=torch.float32)
            library.widen_all(self.wide[key].data_ptr(), weight.data_ptr(), weight.shape[0], weight.stride(0))
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        pointers = out.data_ptr(), x.data_ptr(), self.wide[key].data_ptr()
        library.rms_norm(*pointers, *x.shape, x.stride(0), self.eps)
        return out
