"""---
title: LayerNorm by groups of rows in 512-bit vectors
technique: [row-groups, simd, two-pass-variance, non-temporal-stores, software-prefetch, huge-pages]
dsl: cpp
architecture: [x86-64]
operator: layer_norm
symptoms: [memory-bound, page-faults, launch-bound, cancellation]
preconditions: "bf16 x [..., H], weight, bias [H]; any row stride; a strided last dimension is copied"
tunables:
  group: [1, 2, 4]
  split: [serial, static, dynamic]
  stream: [0, 1]
  prefetch: [0, 1, 2]
  huge_pages: [0, 1]
source: own work
licence: Apache-2.0
---
A group of rows is summed, its centred squares are, and it is scaled, all while it is in the first- or
second-level cache. The variance comes from centred values: sum(x^2) - mean^2 cancels where the mean is
large.

`group` rows are taken at a time, so that their reductions overlap. `split`, `stream`, `prefetch` and
`huge_pages` mean what they mean in kernels/cpp/rms_norm/vector_rows. A sum has one order, 4 accumulators
of 16 lanes, whatever the configuration, the strides and the number of threads: all give the same bits.
"""

import functools
import math

import torch
from torch import nn

from atrex.dsl import cpp

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"group": 1, "split": "static", "stream": 0, "prefetch": 0, "huge_pages": 0}),
]
# atrex: end

SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <sys/mman.h>
#if defined(__AVX__)
#include <immintrin.h>
#endif

typedef uint16_t bf16;
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef float f32x16 __attribute__((vector_size(64)));

constexpr int64_t LANES = 16;
constexpr int64_t TASK = 1 << 16;  // bytes of input in a task of the dynamic split

static inline f32x16 widened(u16x16 value) { return (f32x16)(__builtin_convertvector(value, u32x16) << 16); }

static inline f32x16 load(const bf16* at) {
    u16x16 value;
    memcpy(&value, at, sizeof value);
    return widened(value);
}

// The first n < 16 elements, then zeros.
static inline f32x16 load(const bf16* at, int64_t n) {
    u16x16 value = {};
    memcpy(&value, at, sizeof(bf16) * n);
    return widened(value);
}

// To nearest even. A NaN stays one: each comes from a bf16 or from the processor, so its low half is zero and
// the addition cannot carry.
static inline u16x16 rounded(f32x16 value) {
    const u32x16 bits = (u32x16)value;
    return __builtin_convertvector((bits + ((bits >> 16) & 1u) + 0x7fffu) >> 16, u16x16);
}

// STREAM goes past the caches, for which `at` must be a multiple of 32 bytes.
template <bool STREAM> static inline void store(bf16* at, f32x16 value) {
    const u16x16 narrow = rounded(value);
#if defined(__AVX__)
    if (STREAM) return _mm256_stream_si256((__m256i*)at, (__m256i)narrow);
#endif
    memcpy(at, &narrow, sizeof narrow);
}

static inline void store(bf16* at, f32x16 value, int64_t n) {
    const u16x16 narrow = rounded(value);
    memcpy(at, &narrow, sizeof(bf16) * n);
}

static inline float sum(f32x16 value) {
    float lanes[LANES];
    memcpy(lanes, &value, sizeof value);
    for (int64_t width = LANES / 2; width; width /= 2)
        for (int64_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    return lanes[0];
}

struct Problem {
    bf16* out;
    const bf16 *x, *weight, *bias;
    float eps;
    int64_t rows, width, x_stride, group, stream, prefetch, huge_pages, threads, dynamic;
};

template <int ROWS> using Sums = f32x16[ROWS][4];

template <int ROWS> static inline void folded(const Problem& p, const Sums<ROWS>& sums, float (&mean)[ROWS]) {
    for (int r = 0; r < ROWS; ++r)
        mean[r] = sum((sums[r][0] + sums[r][1]) + (sums[r][2] + sums[r][3])) / float(p.width);
}

// Lanes from n on are no elements of the row.
static inline f32x16 first(f32x16 value, int64_t n) {
    for (int64_t i = n; i < LANES; ++i) value[i] = 0.0f;
    return value;
}

template <int ROWS> static inline void means(const Problem& p, const bf16* x, float (&mean)[ROWS]) {
    Sums<ROWS> sums = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= p.width; i += 4 * LANES)
        for (int r = 0; r < ROWS; ++r)
            for (int slot = 0; slot < 4; ++slot) sums[r][slot] += load(x + r * p.x_stride + i + slot * LANES);
    for (int slot = 0; i < p.width; i += LANES, ++slot)
        for (int r = 0; r < ROWS; ++r)
            sums[r][slot] += load(x + r * p.x_stride + i, std::min(LANES, p.width - i));
    folded<ROWS>(p, sums, mean);
}

template <int ROWS>
static inline void variances(
    const Problem& p, const bf16* x, const float (&mean)[ROWS], float (&variance)[ROWS]) {
    Sums<ROWS> squares = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= p.width; i += 4 * LANES)
        for (int r = 0; r < ROWS; ++r)
            for (int slot = 0; slot < 4; ++slot) {
                const f32x16 centred = load(x + r * p.x_stride + i + slot * LANES) - mean[r];
                squares[r][slot] += centred * centred;
            }
    for (int slot = 0; i < p.width; i += LANES, ++slot)
        for (int r = 0; r < ROWS; ++r) {
            const int64_t n = std::min(LANES, p.width - i);
            const f32x16 centred = first(load(x + r * p.x_stride + i, n) - mean[r], n);
            squares[r][slot] += centred * centred;
        }
    folded<ROWS>(p, squares, variance);
}

template <int ROWS, bool STREAM> static inline void normalise(const Problem& p, int64_t row) {
    const bf16* x = p.x + row * p.x_stride;
    bf16* out = p.out + row * p.width;
    const bool ahead = p.prefetch && row + (p.prefetch + 1) * ROWS <= p.rows;
    const bf16* next = x + (ahead ? p.prefetch * ROWS * p.x_stride : 0);
    float mean[ROWS], scale[ROWS];
    means<ROWS>(p, x, mean);
    variances<ROWS>(p, x, mean, scale);
    for (int r = 0; r < ROWS; ++r) scale[r] = 1.0f / std::sqrt(scale[r] + p.eps);
    int64_t i = 0;
    for (; i + LANES <= p.width; i += LANES) {
        const f32x16 gain = load(p.weight + i), shift = load(p.bias + i);
        for (int r = 0; r < ROWS; ++r) {
            if (ahead && i % (2 * LANES) == 0) __builtin_prefetch(next + r * p.x_stride + i);
            const f32x16 centred = load(x + r * p.x_stride + i) - mean[r];
            store<STREAM>(out + r * p.width + i, centred * scale[r] * gain + shift);
        }
    }
    if (const int64_t rest = p.width - i) {
        const f32x16 gain = load(p.weight + i, rest), shift = load(p.bias + i, rest);
        for (int r = 0; r < ROWS; ++r) {
            const f32x16 centred = load(x + r * p.x_stride + i, rest) - mean[r];
            store(out + r * p.width + i, centred * scale[r] * gain + shift, rest);
        }
    }
}

template <int ROWS, bool STREAM> static void normalise_range(const Problem& p, int64_t first, int64_t last) {
    int64_t row = first;
    for (; row + ROWS <= last; row += ROWS) normalise<ROWS, STREAM>(p, row);
    for (; row < last; ++row) normalise<1, STREAM>(p, row);
#if defined(__AVX__)
    if (STREAM) _mm_sfence();  // streamed stores are not ordered with the barrier that follows
#endif
}

typedef void (*Range)(const Problem&, int64_t, int64_t);

template <bool STREAM> static Range range_of(int64_t group) {
    return group == 1 ? normalise_range<1, STREAM>
         : group == 2 ? normalise_range<2, STREAM> : normalise_range<4, STREAM>;
}

// Only whole pages of an output: what lies beside it in its first and last page is not ours.
static void advise_huge_pages(bf16* out, int64_t elements) {
    const uintptr_t page = 4096, first = ((uintptr_t)out + page - 1) & -page;
    const uintptr_t last = (uintptr_t)(out + elements) & -page;
    if (elements >= 1 << 20 && first < last) madvise((void*)first, last - first, MADV_HUGEPAGE);
}

static void run(const Problem& p, Range range, int64_t group, int64_t row_bytes) {
    if (p.threads <= 1) return range(p, 0, p.rows);
    int64_t task = (p.rows + p.threads - 1) / p.threads;
    if (p.dynamic) task = std::min(task, TASK / row_bytes);
    task = std::max(group, task / group * group);
    const int64_t tasks = (p.rows + task - 1) / task;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < tasks; ++i) range(p, i * task, std::min(p.rows, (i + 1) * task));
}

extern "C" void layer_norm(
    bf16* out, const bf16* x, const bf16* weight, const bf16* bias, float eps, int64_t rows, int64_t width,
    int64_t x_stride, int64_t group, int64_t stream, int64_t prefetch, int64_t huge_pages, int64_t threads,
    int64_t dynamic) {
    const Problem p = {out, x, weight, bias, eps, rows, width, x_stride,
                       group, stream, prefetch, huge_pages, threads, dynamic};
    const bool aligned = (uintptr_t)out % 32 == 0 && width % LANES == 0;  // so is every row then
    if (huge_pages) advise_huge_pages(out, rows * width);
    run(p, stream && aligned ? range_of<true>(group) : range_of<false>(group), group, 2 * width);
}
"""

_layer_norm = cpp.compile(SOURCE, {"layer_norm": [*[cpp.pointer] * 4, cpp.f32, *[cpp.i64] * 9]}).layer_norm


@functools.lru_cache(maxsize=4096)
def _settings(rows: int, last: int, threads: int) -> tuple[int, ...]:
    """What the first rule that covers the extents says, as the kernel takes it."""
    dims = {"rows": rows, "last": last}
    chosen = next(c for bounds, c in DISPATCH if all(dims[name] <= bound for name, bound in bounds.items()))
    serial, dynamic = chosen["split"] == "serial", chosen["split"] == "dynamic"
    return (
        *(int(chosen[name]) for name in ("group", "stream", "prefetch", "huge_pages")),
        1 if serial else max(1, min(threads, rows)),
        int(dynamic),
    )


class Model(nn.Module):
    """(x - mean) * rsqrt(variance + eps) * weight + bias over the last dimension, in fp32, rounded once."""

    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        *leading, H = x.shape
        x = x.reshape(math.prod(leading), H)
        if x.stride(-1) != 1:
            x = x.contiguous()
        weight, bias = weight.contiguous(), bias.contiguous()
        R = x.shape[0]
        out = torch.empty((R, H), dtype=x.dtype)
        settings = _settings(R, H, torch.get_num_threads())
        pointers = (tensor.data_ptr() for tensor in (out, x, weight, bias))
        _layer_norm(*pointers, self.eps, R, H, x.stride(0), *settings)
        return out.view(*leading, H)
