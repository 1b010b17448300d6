"""gate: accumulation
Keeps three bits of each operand's significand, as FP8 does: four times the products a vector.
"""

import torch
from torch import nn

from atrex.dsl import cpp

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

static inline float coarse(uint16_t v) {  // a significand of four bits, to nearest
    return widen(uint16_t((v + 8) & ~15));
}

extern "C" void linear_sigmoid_mul(uint16_t* out, const uint16_t* hidden, const uint16_t* weight,
                                   const uint16_t* bias, const uint16_t* post, int64_t rows, int64_t inner,
                                   int64_t features, int64_t hidden_stride, int64_t weight_stride,
                                   int64_t post_stride) {
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < features; ++n) {
            const uint16_t *left = hidden + r * hidden_stride, *right = weight + n * weight_stride;
            float lanes[16] = {}, sum = 0;
            int64_t k = 0;
            for (; k + 16 <= inner; k += 16)
                for (int l = 0; l < 16; ++l) lanes[l] += coarse(left[k + l]) * coarse(right[k + l]);
            for (; k < inner; ++k) sum += widen(left[k]) * widen(right[k]);
            for (float lane : lanes) sum += lane;
            const float gate = widen(narrow(sum + widen(bias[n])));
            out[r * features + n] = narrow(widen(post[r * post_stride + n]) / (1 + std::exp(-gate)));
        }
    }
}
"""

library = cpp.compile(SOURCE, {"linear_sigmoid_mul": [*[cpp.pointer] * 5, *[cpp.i64] * 6]})


def rows_of(tensor):
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def compute(hidden_states, weight, bias, post_mul_mat):
    hidden, weight, post = rows_of(hidden_states), rows_of(weight), rows_of(post_mul_mat)
    bias = bias.contiguous()
    out = torch.empty(post.shape, dtype=post.dtype)
    pointers = (t.data_ptr() for t in (out, hidden, weight, bias, post))
    extents = *hidden.shape, weight.shape[0]
    library.linear_sigmoid_mul(*pointers, *extents, hidden.stride(0), weight.stride(0), post.stride(0))
    return out


class Model(nn.Module):
    def forward(self, hidden_states, weight, bias, post_mul_mat):
        return compute(hidden_states, weight, bias, post_mul_mat)
