"""---
title: L2 norm by groups of rows in 512-bit vectors
technique: [row-groups, simd, several-accumulators, non-temporal-stores, software-prefetch, huge-pages]
dsl: cpp
architecture: [x86-64]
operator: l2_norm
symptoms: [memory-bound, page-faults, launch-bound]
preconditions: "bf16 x [T, H]; any row stride and alignment; a strided last dimension is copied"
tunables:
  group: [1, 2, 4]
  split: [serial, static, dynamic]
  stream: [0, 1]
  prefetch: [0, 1, 2]
  huge_pages: [0, 1]
source: own work
licence: Apache-2.0
---
A group of rows is summed first, then scaled while it is still in the first- or second-level cache: the
aim is to read x once from memory and to write the output without reading it.

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
    bf16* out;
    const bf16* x;
    float eps;
    int64_t rows, width, x_stride, group, stream, prefetch, huge_pages, threads, dynamic;
};

// Squares of each row, 4 accumulators of 16 lanes.
template <int ROWS> static inline void inverse_length(const Problem& p, const bf16* x, float (&scale)[ROWS]) {
    f32x16 squares[ROWS][4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= p.width; i += 4 * LANES)
        for (int r = 0; r < ROWS; ++r)
            for (int slot = 0; slot < 4; ++slot) {
                const f32x16 value = load(x + r * p.x_stride + i + slot * LANES);
                squares[r][slot] += value * value;
            }
    for (int slot = 0; i < p.width; i += LANES, ++slot)
        for (int r = 0; r < ROWS; ++r) {
            const f32x16 value = load(x + r * p.x_stride + i, std::min(LANES, p.width - i));
            squares[r][slot] += value * value;
        }
    for (int r = 0; r < ROWS; ++r) {
        const float total = sum((squares[r][0] + squares[r][1]) + (squares[r][2] + squares[r][3]));
        scale[r] = 1.0f / std::sqrt(total + p.eps);
    }
}

template <int ROWS, bool STREAM> static inline void normalise(const Problem& p, int64_t row) {
    const bf16* x = p.x + row * p.x_stride;
    bf16* out = p.out + row * p.width;
    const bool ahead = p.prefetch && row + (p.prefetch + 1) * ROWS <= p.rows;
    const bf16* next = x + (ahead ? p.prefetch * ROWS * p.x_stride : 0);
    float scale[ROWS];
    inverse_length<ROWS>(p, x, scale);
    int64_t i = 0;
    for (; i + LANES <= p.width; i += LANES)
        for (int r = 0; r < ROWS; ++r) {
            if (ahead && i % (2 * LANES) == 0) __builtin_prefetch(next + r * p.x_stride + i);
            store<STREAM>(out + r * p.width + i, load(x + r * p.x_stride + i) * scale[r]);
        }
    if (const int64_t rest = p.width - i)
        for (int r = 0; r < ROWS; ++r)
            store(out + r * p.width + i, load(x + r * p.x_stride + i, rest) * scale[r], rest);
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

extern "C" void l2_norm(
    bf16* out, const bf16* x, float eps, int64_t rows, int64_t width, int64_t x_stride, int64_t group,
    int64_t stream, int64_t prefetch, int64_t huge_pages, int64_t threads, int64_t dynamic) {
    const Problem p = {out, x, eps, rows, width, x_stride,
                       group, stream, prefetch, huge_pages, threads, dynamic};
    const bool aligned = (uintptr_t)out % 32 == 0 && width % LANES == 0;  // so is every row then
    if (huge_pages) advise_huge_pages(out, rows * width);
    run(p, stream && aligned ? range_of<true>(group) : range_of<false>(group), group, 2 * width);
}
"""

_l2_norm = cpp.compile(SOURCE, {"l2_norm": [cpp.pointer, cpp.pointer, cpp.f32, *[cpp.i64] * 9]}).l2_norm


@functools.lru_cache(maxsize=4096)
def _settings(num_tokens: int, hidden_size: int, threads: int) -> tuple[int, ...]:
    """What the first rule that covers the extents says, as the kernel takes it."""
    dims = {"num_tokens": num_tokens, "hidden_size": hidden_size}
    chosen = next(c for bounds, c in DISPATCH if all(dims[name] <= bound for name, bound in bounds.items()))
    serial, dynamic = chosen["split"] == "serial", chosen["split"] == "dynamic"
    return (
        *(int(chosen[name]) for name in ("group", "stream", "prefetch", "huge_pages")),
        1 if serial else max(1, min(threads, num_tokens)),
        int(dynamic),
    )


class Model(nn.Module):
    """out = x * rsqrt(sum(x**2, -1) + eps), in fp32, rounded once to bf16."""

    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        T, H = x.shape
        out = torch.empty((T, H), dtype=x.dtype)
        settings = _settings(T, H, torch.get_num_threads())
        _l2_norm(out.data_ptr(), x.data_ptr(), self.eps, T, H, x.stride(0), *settings)
        return out
