"""RMSNorm, wrong: the addition of eps is left out."""

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

extern "C" void rms_norm(uint16_t* __restrict out, const uint16_t* __restrict x,
                         const uint16_t* __restrict weight,
                         int64_t rows, int64_t hidden, int64_t x_stride, int64_t threads,
                         float eps) {
#pragma omp parallel for num_threads(threads) if (rows * hidden > 32768)
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* row = x + r * x_stride;
        float lanes[8] = {}, sum = 0;
        int64_t i = 0;
        for (; i + 8 <= hidden; i += 8)
            for (int64_t j = 0; j < 8; ++j) lanes[j] += widen(row[i + j]) * widen(row[i + j]);
        for (; i < hidden; ++i) lanes[i % 8] += widen(row[i]) * widen(row[i]);
        for (float lane : lanes) sum += lane;
        const float scale = 1 / std::sqrt(sum / hidden);
        for (int64_t i = 0; i < hidden; ++i)
            out[r * hidden + i] = narrow(widen(row[i]) * scale * widen(weight[i]));
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
        weight = weight.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr()
        threads = torch.get_num_threads()
        library.rms_norm(*pointers, *x.shape, x.stride(0), threads, self.eps)
        return out
