"""---
title: SiLU and product in 512-bit vectors, with an exponential of its own
technique: [elementwise-fusion, simd, polynomial-exponential, non-temporal-stores, huge-pages]
dsl: cpp
architecture: [x86-64]
operator: silu_and_mul
symptoms: [memory-bound, compute-bound, page-faults, launch-bound, unfused-elementwise]
preconditions: "bf16 x [..., 2 F] or [..., 1]; any row stride; a strided last dimension is copied"
tunables:
  split: [serial, static, dynamic]
  stream: [0, 1]
  prefetch: [0, 128, 512, 2048]
  huge_pages: [0, 1]
source: own work
licence: Apache-2.0
---
Gate and up projection lie in the two halves of a row. One pass reads both and writes half as much as it
read; the library's exponential, called an element at a time, would take longer than the memory does, so
16 are computed at once.

`prefetch` asks for what lies that many elements ahead in both halves; `split`, `stream` and `huge_pages`
mean what they mean in kernels/cpp/rms_norm/vector_rows. Each element depends on nothing but its own two
inputs: the result is the same whatever the configuration.
"""

import functools
import math

import torch
from torch import nn

from atrex.dsl import cpp

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"split": "static", "stream": 0, "prefetch": 0, "huge_pages": 0}),
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

struct Problem {
    bf16* out;
    const bf16* x;
    int64_t rows, width, x_stride, plain, stream, prefetch, huge_pages, threads, dynamic;
};

// e^x to about one unit in the last place: x = n log 2 + r with |r| <= log(2) / 2, a polynomial in r (the
// coefficients of Cephes' expf), and 2^n in two factors, so that neither overflows before the result does.
static inline f32x16 exponential(f32x16 x) {
    const f32x16 low = f32x16{} - 104.0f, high = f32x16{} + 89.0f;
    x = x < low ? low : x;  // false for NaN, which stays
    x = x > high ? high : x;
    const f32x16 shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: n in the low bits
    const f32x16 whole = shifted - 12582912.0f;
    const f32x16 r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    f32x16 y = r * 1.9875691500e-4f + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    const u32x16 n = (u32x16)shifted - 0x4b400000u;  // two's complement
    typedef int32_t i32x16 __attribute__((vector_size(64)));
    const u32x16 half = (u32x16)((i32x16)n >> 1);
    return y * (f32x16)((half + 127u) << 23) * (f32x16)((n - half + 127u) << 23);
}

static inline f32x16 silu(f32x16 gate) { return widened(rounded(gate / (1.0f + exponential(-gate)))); }

template <bool STREAM> static void activate(const Problem& p, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        const bf16 *gate = p.x + row * p.x_stride, *up = gate + p.width;
        bf16* out = p.out + row * p.width;
        int64_t i = 0;
        for (; i + LANES <= p.width; i += LANES) {
            if (p.prefetch && i % (2 * LANES) == 0 && i + p.prefetch < p.width) {
                __builtin_prefetch(gate + i + p.prefetch);
                __builtin_prefetch(up + i + p.prefetch);
            }
            store<STREAM>(out + i, silu(load(gate + i)) * load(up + i));
        }
        if (const int64_t rest = p.width - i) {
            const f32x16 y = silu(load(gate + i, rest));
            store(out + i, p.plain ? y : y * load(up + i, rest), rest);
        }
    }
#if defined(__AVX__)
    if (STREAM) _mm_sfence();  // streamed stores are not ordered with the barrier that follows
#endif
}

typedef void (*Range)(const Problem&, int64_t, int64_t);

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

extern "C" void silu_and_mul(
    bf16* out, const bf16* x, int64_t rows, int64_t width, int64_t x_stride, int64_t plain, int64_t stream,
    int64_t prefetch, int64_t huge_pages, int64_t threads, int64_t dynamic) {
    const Problem p = {out, x, rows, width, x_stride, plain, stream, prefetch, huge_pages, threads, dynamic};
    const bool aligned = (uintptr_t)out % 32 == 0 && width % LANES == 0;  // so is every row then
    if (huge_pages) advise_huge_pages(out, rows * width);
    run(p, stream && aligned ? activate<true> : activate<false>, 1, 4 * width);
}
"""

_silu_and_mul = cpp.compile(SOURCE, {"silu_and_mul": [cpp.pointer, cpp.pointer, *[cpp.i64] * 9]}).silu_and_mul


@functools.lru_cache(maxsize=4096)
def _settings(rows: int, last: int, features: int, threads: int) -> tuple[int, ...]:
    """What the first rule that covers the extents says, as the kernel takes it."""
    dims = {"rows": rows, "last": last, "features": features}
    chosen = next(c for bounds, c in DISPATCH if all(dims[name] <= bound for name, bound in bounds.items()))
    serial, dynamic = chosen["split"] == "serial", chosen["split"] == "dynamic"
    return (
        *(int(chosen[name]) for name in ("stream", "prefetch", "huge_pages")),
        1 if serial else max(1, min(threads, rows)),
        int(dynamic),
    )


class Model(nn.Module):
    """out = bf16(silu(x[..., :F])) * x[..., F:], or silu(x) where the last dimension is 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        *leading, last = x.shape
        plain = last == 1
        R, F = math.prod(leading), last if plain else last // 2
        x = x.reshape(R, last)
        if x.stride(-1) != 1:
            x = x.contiguous()
        out = torch.empty((R, F), dtype=x.dtype)
        settings = _settings(R, last, F, torch.get_num_threads())
        _silu_and_mul(out.data_ptr(), x.data_ptr(), R, F, x.stride(0), int(plain), *settings)
        return out.view(*leading, F)
