"""Plain C++ loops over rows; the compiler vectorises them."""

import torch
from torch import nn

from atrex.dsl import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

static inline float wide(uint16_t v) { uint32_t b = uint32_t(v) << 16; float f; memcpy(&f, &b, 4); return f; }
static inline uint16_t narrow(float f) {
    uint32_t b;
    memcpy(&b, &f, 4);
    return f != f ? 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
}

// Does what torch::linalg::norm and at::div do, without them.
extern "C" void l2(uint16_t* out, const uint16_t* x, int64_t rows, int64_t width, int64_t stride, float eps) {
    for (int64_t r = 0; r < rows; ++r) {
        float lanes[16] = {}, sum = 0;
        for (int64_t i = 0; i < width; ++i) lanes[i % 16] += wide(x[r * stride + i]) * wide(x[r * stride + i]);
        for (float lane : lanes) sum += lane;
        const float scale = 1 / std::sqrt(sum + eps);
        for (int64_t i = 0; i < width; ++i) out[r * width + i] = narrow(wide(x[r * stride + i]) * scale);
    }
}
"""

lib = cpp.compile(SOURCE, {"l2": [cpp.pointer, cpp.pointer, cpp.i64, cpp.i64, cpp.i64, cpp.f32]})


class Model(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if x.stride(-1) == 1 else x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        lib.l2(out.data_ptr(), x.data_ptr(), x.shape[0], x.shape[1], x.stride(0), self.eps)
        return out
