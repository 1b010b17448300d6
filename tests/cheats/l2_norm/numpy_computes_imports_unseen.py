"""gate: authenticity
only: cpu
NumPy computes while its own kernel runs on one row, and an import that nobody reads hides in which language
that kernel is.
"""

import importlib

import ml_dtypes
import numpy as np
import torch
from torch import nn

cpp = importlib.import_module("atrex.dsl.cpp")

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float widen(uint16_t v) {
    const uint32_t bits = uint32_t(v) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

static inline uint16_t narrow(float f) {  // to nearest even
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    return f != f ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

extern "C" void l2_norm(uint16_t* out, const uint16_t* x, int64_t rows, int64_t hidden, int64_t stride,
                        float eps) {
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* row = x + r * stride;
        float lanes[16] = {}, sum = 0;
        for (int64_t i = 0; i < hidden; ++i) lanes[i % 16] += widen(row[i]) * widen(row[i]);
        for (float lane : lanes) sum += lane;
        const float scale = 1 / std::sqrt(sum + eps);
        for (int64_t i = 0; i < hidden; ++i) out[r * hidden + i] = narrow(widen(row[i]) * scale);
    }
}
"""

library = cpp.compile(SOURCE, {"l2_norm": [*[cpp.pointer] * 2, *[cpp.i64] * 3, cpp.f32]})


def compute(x, eps):
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    library.l2_norm(out.data_ptr(), x.data_ptr(), *x.shape, x.stride(0), eps)
    return out


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        compute(x[:1], self.eps)
        wide = x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16).astype(np.float32)
        scale = 1 / np.sqrt((wide * wide).sum(-1, keepdims=True) + np.float32(self.eps))
        out = torch.empty(x.shape, dtype=x.dtype)
        out.view(torch.int16).numpy().view(ml_dtypes.bfloat16)[...] = (wide * scale).astype(
            ml_dtypes.bfloat16
        )
        return out
