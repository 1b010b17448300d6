import ctypes
import math
from textwrap import dedent

import torch
from torch import nn

import atrex.dsl.cpp as native

CODE = dedent(r"""
    #include <cmath>
    #include <cstdint>
    #include <cstring>
    typedef uint16_t bf16;
    static float up(bf16 v) { uint32_t b = uint32_t(v) << 16; float f; memcpy(&f, &b, 4); return f; }
    static bf16 down(float f) {
        uint32_t b; memcpy(&b, &f, 4);
        return f != f ? 0x7fc0 : (b + 0x7fff + (b >> 16 & 1)) >> 16;
    }
    extern "C" void silu_mul(bf16* y, const bf16* x, int64_t rows, int64_t f, int64_t stride, int64_t threads) {
    #pragma omp parallel for num_threads(threads)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t i = 0; i < f; ++i) {
                const float g = up(x[r * stride + i]);
                y[r * f + i] = down(up(down(g / (1 + std::exp(-g)))) * up(x[r * stride + f + i]));
            }
    }
""")


def build():
    p, n = ctypes.c_void_p, ctypes.c_int64
    return native.compile(CODE, {"silu_mul": [p, p, n, n, n, n]}).silu_mul


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.function = build()

    def forward(self, x):
        *lead, last = x.shape
        if last == 1:
            raise NotImplementedError("one column")
        rows, f = math.prod(lead), last // 2
        x = x.reshape(rows, last).contiguous()
        y = torch.empty((rows, f), dtype=x.dtype)
        self.function(y.data_ptr(), x.data_ptr(), rows, f, last, torch.get_num_threads())
        return y.view(*lead, f)
