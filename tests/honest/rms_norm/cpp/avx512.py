"""gate: none
Rows spread over OpenMP threads; whole vectors of 16 by AVX-512 intrinsics, the rest one by one.
"""

import torch
from torch import nn

from atrex.dsl import cpp

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>
#include <immintrin.h>

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

#if defined(__AVX512F__)
constexpr int64_t VECTOR = 16;

static inline __m512 load(const uint16_t* at) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

static inline void store(uint16_t* at, __m512 value) {
    const __m512i bits = _mm512_castps_si512(value), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(bits, 16), one);
    const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i rounded = _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc00000));
    _mm256_storeu_si256((__m256i*)at, _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
}

static inline float sum_of_squares(const uint16_t* row, int64_t whole) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t i = 0; i < whole; i += VECTOR) sum = _mm512_fmadd_ps(load(row + i), load(row + i), sum);
    return _mm512_reduce_add_ps(sum);
}

static inline void scale_row(uint16_t* out, const uint16_t* row, const uint16_t* weight, float scale,
                             int64_t whole) {
    for (int64_t i = 0; i < whole; i += VECTOR)
        store(out + i, _mm512_mul_ps(_mm512_mul_ps(load(row + i), _mm512_set1_ps(scale)), load(weight + i)));
}
#else  // everything is left to the scalar loops
constexpr int64_t VECTOR = INT64_MAX;
static inline float sum_of_squares(const uint16_t*, int64_t) { return 0; }
static inline void scale_row(uint16_t*, const uint16_t*, const uint16_t*, float, int64_t) {}
#endif

extern "C" void rms_norm(uint16_t* out, const uint16_t* x, const uint16_t* weight, int64_t rows,
                         int64_t hidden, int64_t x_stride, int64_t weight_stride, float eps,
                         int64_t threads) {
    const int64_t whole = hidden / VECTOR * VECTOR;
    const int64_t scaled = weight_stride == 1 ? whole : 0;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* row = x + r * x_stride;
        float sum = sum_of_squares(row, whole);
        for (int64_t i = whole; i < hidden; ++i) sum += widen(row[i]) * widen(row[i]);
        const float scale = 1 / std::sqrt(sum / hidden + eps);
        scale_row(out + r * hidden, row, weight, scale, scaled);
        for (int64_t i = scaled; i < hidden; ++i)
            out[r * hidden + i] = narrow(widen(row[i]) * scale * widen(weight[i * weight_stride]));
    }
}
"""

library = cpp.compile(SOURCE, {"rms_norm": [*[cpp.pointer] * 3, *[cpp.i64] * 4, cpp.f32, cpp.i64]})


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr()
        threads = torch.get_num_threads()
        library.rms_norm(*pointers, *x.shape, x.stride(0), weight.stride(0), self.eps, threads)
        return out
