"""---
title: Residual addition and RMSNorm by groups of rows in 512-bit vectors
technique: [row-groups, simd, several-accumulators, non-temporal-stores, software-prefetch, huge-pages]
dsl: cpp
architecture: [x86-64]
operator: fused_add_rms_norm
symptoms: [memory-bound, page-faults, launch-bound, unfused-elementwise]
preconditions: "bf16 x, residual [T, H], weight [H]; any row stride; a strided last dimension is copied"
tunables:
  group: [1, 2, 4]
  split: [serial, static, dynamic]
  stream: [0, 1]
  prefetch: [0, 1, 2]
  huge_pages: [0, 1]
source: own work
licence: Apache-2.0
---
The sum of a group of rows is rounded, written, and squared as it was rounded; then it is read back from
the cache and scaled: 8 bytes of memory an element, the least there is. Only the norm can go past the
caches, since the sum is read again.

`group` rows are taken at a time, so that their reductions overlap. `split`, `stream`, `prefetch` and
`huge_pages` mean what they mean in kernels/cpp/rms_norm/vector_rows. A sum has one order, 4 accumulators
of 16 lanes, whatever the configuration, the strides and the number of threads: all give the same bits.
"""

import functools

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
    bf16 *out, *total;
    const bf16 *x, *residual, *weight;
    float eps;
    int64_t rows, width, x_stride, residual_stride, group, stream, prefetch, huge_pages, threads, dynamic;
};

// The sum of both inputs, rounded to bf16, goes to memory; what was rounded is squared.
template <int ROWS> static inline void add(const Problem& p, int64_t row, float (&scale)[ROWS]) {
    const bf16 *x = p.x + row * p.x_stride, *residual = p.residual + row * p.residual_stride;
    bf16* total = p.total + row * p.width;
    f32x16 squares[ROWS][4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= p.width; i += 4 * LANES)
        for (int r = 0; r < ROWS; ++r)
            for (int slot = 0; slot < 4; ++slot) {
                const int64_t at = i + slot * LANES;
                const u16x16 both =
                    rounded(load(x + r * p.x_stride + at) + load(residual + r * p.residual_stride + at));
                memcpy(total + r * p.width + at, &both, sizeof both);
                squares[r][slot] += widened(both) * widened(both);
            }
    for (int slot = 0; i < p.width; i += LANES, ++slot)
        for (int r = 0; r < ROWS; ++r) {
            const int64_t n = std::min(LANES, p.width - i);
            const u16x16 both =
                rounded(load(x + r * p.x_stride + i, n) + load(residual + r * p.residual_stride + i, n));
            memcpy(total + r * p.width + i, &both, sizeof(bf16) * n);
            squares[r][slot] += widened(both) * widened(both);
        }
    for (int r = 0; r < ROWS; ++r) {
        const float all = sum((squares[r][0] + squares[r][1]) + (squares[r][2] + squares[r][3]));
        scale[r] = 1.0f / std::sqrt(all / float(p.width) + p.eps);
    }
}

template <int ROWS, bool STREAM> static inline void normalise(const Problem& p, int64_t row) {
    const bf16* total = p.total + row * p.width;
    bf16* out = p.out + row * p.width;
    const bool ahead = p.prefetch && row + (p.prefetch + 1) * ROWS <= p.rows;
    const int64_t group = ahead ? row + p.prefetch * ROWS : row;
    const bf16 *x = p.x + group * p.x_stride, *residual = p.residual + group * p.residual_stride;
    float scale[ROWS];
    add<ROWS>(p, row, scale);
    int64_t i = 0;
    for (; i + LANES <= p.width; i += LANES) {
        const f32x16 gain = load(p.weight + i);
        for (int r = 0; r < ROWS; ++r) {
            if (ahead && i % (2 * LANES) == 0) {
                __builtin_prefetch(x + r * p.x_stride + i);
                __builtin_prefetch(residual + r * p.residual_stride + i);
            }
            store<STREAM>(out + r * p.width + i, load(total + r * p.width + i) * scale[r] * gain);
        }
    }
    if (const int64_t rest = p.width - i) {
        const f32x16 gain = load(p.weight + i, rest);
        for (int r = 0; r < ROWS; ++r)
            store(out + r * p.width + i, load(total + r * p.width + i, rest) * scale[r] * gain, rest);
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

extern "C" void fused_add_rms_norm(
    bf16* out, bf16* total, const bf16* x, const bf16* residual, const bf16* weight, float eps, int64_t rows,
    int64_t width, int64_t x_stride, int64_t residual_stride, int64_t group, int64_t stream, int64_t prefetch,
    int64_t huge_pages, int64_t threads, int64_t dynamic) {
    const Problem p = {out, total, x, residual, weight, eps, rows, width, x_stride, residual_stride,
                       group, stream, prefetch, huge_pages, threads, dynamic};
    const bool aligned = (uintptr_t)out % 32 == 0 && width % LANES == 0;  // so is every row then
    if (huge_pages) {
        advise_huge_pages(out, rows * width);
        advise_huge_pages(total, rows * width);
    }
    run(p, stream && aligned ? range_of<true>(group) : range_of<false>(group), group, 4 * width);
}
"""

_fused_add_rms_norm = cpp.compile(
    SOURCE, {"fused_add_rms_norm": [*[cpp.pointer] * 5, cpp.f32, *[cpp.i64] * 10]}
).fused_add_rms_norm


@functools.lru_cache(maxsize=4096)
def _settings(token_count: int, hidden_size: int, threads: int) -> tuple[int, ...]:
    """What the first rule that covers the extents says, as the kernel takes it."""
    dims = {"token_count": token_count, "hidden_size": hidden_size}
    chosen = next(c for bounds, c in DISPATCH if all(dims[name] <= bound for name, bound in bounds.items()))
    serial, dynamic = chosen["split"] == "serial", chosen["split"] == "dynamic"
    return (
        *(int(chosen[name]) for name in ("group", "stream", "prefetch", "huge_pages")),
        1 if serial else max(1, min(threads, token_count)),
        int(dynamic),
    )


class Model(nn.Module):
    """residual = bf16(x + residual), and its rms_norm with a weight, in fp32, rounded once."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        x = x if x.stride(-1) == 1 else x.contiguous()
        residual = residual if residual.stride(-1) == 1 else residual.contiguous()
        weight = weight.contiguous()
        T, H = x.shape
        out, total = (torch.empty((T, H), dtype=x.dtype) for _ in range(2))
        settings = _settings(T, H, torch.get_num_threads())
        pointers = (tensor.data_ptr() for tensor in (out, total, x, residual, weight))
        _fused_add_rms_norm(*pointers, self.eps, T, H, x.stride(0), residual.stride(0), *settings)
        return {"out": out, "residual": total}
