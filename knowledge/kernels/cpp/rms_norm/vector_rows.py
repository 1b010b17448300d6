"""---
title: RMSNorm by groups of rows in 512-bit vectors
technique: [row-groups, simd, several-accumulators, non-temporal-stores, software-prefetch, huge-pages]
dsl: cpp
architecture: [x86-64]
operator: rms_norm
symptoms: [memory-bound, page-faults, launch-bound, call-overhead]
preconditions: "bf16 x [T, H], weight [H]; any row stride and alignment; a strided last dimension is copied"
tunables:
  rows: [1, 2, 4]
  split: [serial, static, dynamic]
  stream: [0, 1]
  prefetch: [0, 1, 2]
  huge_pages: [0, 1]
source: own work
licence: Apache-2.0
---
The operator moves 4 bytes an element and computes almost nothing: the aim is to read x once from memory and
to write the output without reading it. A group of `rows` rows is summed first, then scaled while it is still
in the first- or second-level cache.

- A pair of bf16 is one 32-bit word: a shift gives the even element as fp32 and a mask the odd one, so a load
  needs no shuffle. The output is rounded by the processor's own bf16 conversion where it has one, except
  that this flushes subnormals: vectors that hold one, and older processors, round in integers.
- `rows` rows share each load of the weight, and their reductions overlap: it pays most when rows are short.
- `split` spreads the rows over torch's threads: one block each, or blocks of 64 KiB on demand, which evens
  out a busy core. A parallel region costs microseconds, so the smallest inputs stay on one thread.
- `stream` writes past the caches: it spares the read of each output line, and pays when the output is larger
  than the caches; a smaller output is better left where its reader will find it.
- `prefetch` asks for the group that many groups ahead while the current one is scaled from cache.
- `huge_pages` asks the kernel to back a fresh output with 2 MiB pages. An output above malloc's mmap
  threshold (32 MiB at most) is mapped anew at each call, and its 4 KiB page faults then cost several times
  what the operator does.
- A call costs a few microseconds, most of them in Python: the plan of a problem is memoised, as one struct.

The sum has one order, 4 accumulators of 16 lanes over blocks of 4096 elements, whatever the configuration,
the alignment, the strides, the number of threads and the instruction set: all give the same bits. (A product
of two bf16 is exact in fp32, so it is the same with and without a fused multiply-add.)
"""

import ctypes
import functools

import torch
from torch import nn

from atrex.dsl import cpp

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    (
        {"token_count": 64, "hidden_size": 256},
        {"rows": 1, "split": "serial", "stream": 0, "prefetch": 0, "huge_pages": 0},
    ),
    (
        {"token_count": 64, "hidden_size": 2048},
        {"rows": 1, "split": "serial", "stream": 0, "prefetch": 1, "huge_pages": 0},
    ),
    ({"token_count": 64}, {"rows": 4, "split": "static", "stream": 0, "prefetch": 2, "huge_pages": 0}),
    (
        {"token_count": 2048, "hidden_size": 256},
        {"rows": 4, "split": "static", "stream": 0, "prefetch": 2, "huge_pages": 0},
    ),
    (
        {"token_count": 2048, "hidden_size": 2048},
        {"rows": 1, "split": "static", "stream": 0, "prefetch": 2, "huge_pages": 0},
    ),
    ({"token_count": 2048}, {"rows": 1, "split": "static", "stream": 0, "prefetch": 1, "huge_pages": 0}),
    ({"hidden_size": 256}, {"rows": 4, "split": "static", "stream": 1, "prefetch": 1, "huge_pages": 1}),
    ({"hidden_size": 2048}, {"rows": 1, "split": "static", "stream": 1, "prefetch": 2, "huge_pages": 1}),
    ({}, {"rows": 4, "split": "static", "stream": 1, "prefetch": 1, "huge_pages": 1}),
]
# atrex: end

SOURCE = r"""
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>
#include <sys/mman.h>
#if defined(__SSE2__)
#include <immintrin.h>
#endif

typedef uint16_t bf16;
typedef float f32x4 __attribute__((vector_size(16)));
typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));  // 32 bf16: even ones in the low halves

constexpr int64_t VECTOR = 32;     // elements in a u32x16
constexpr int64_t BLOCK = 4096;    // elements summed before the accumulators are folded: bounds the error
constexpr int64_t TASK = 1 << 16;  // bytes of x in a task of the dynamic split

struct Plan {
    int64_t token_count, hidden_size, x_stride, weight_stride;
    int64_t rows, stream, prefetch, huge_pages, threads, dynamic;
};

struct Problem : Plan {
    bf16* out;
    const bf16 *x, *weight;
    float eps;
};

static inline u32x16 load(const bf16* at) {
    u32x16 pairs;
    memcpy(&pairs, at, sizeof pairs);
    return pairs;
}

// The first n < 32 elements, then zeros. AddressSanitizer sees through memcpy only.
static inline u32x16 load(const bf16* at, int64_t n) {
#if defined(__AVX512BW__) && !defined(__SANITIZE_ADDRESS__)
    return (u32x16)_mm512_maskz_loadu_epi16((1u << n) - 1, at);
#else
    u32x16 pairs = {};
    memcpy(&pairs, at, sizeof(bf16) * n);
    return pairs;
#endif
}

template <bool STREAM> static inline void store(bf16* at, u32x16 pairs) {
#if defined(__AVX512F__)
    if (STREAM) return _mm512_stream_si512((__m512i*)at, (__m512i)pairs);
#elif defined(__SSE2__)
    if (STREAM) {
        __m128i quarters[4];
        memcpy(quarters, &pairs, sizeof pairs);
        for (int i = 0; i < 4; ++i) _mm_stream_si128((__m128i*)at + i, quarters[i]);
        return;
    }
#endif
    memcpy(at, &pairs, sizeof pairs);
}

static inline f32x16 even(u32x16 pairs) { return (f32x16)(pairs << 16); }
static inline f32x16 odd(u32x16 pairs) { return (f32x16)(pairs & 0xffff0000u); }

// To nearest even, in the high half. A NaN stays one: each comes from a bf16 or from the processor, so its
// low half is zero and the addition cannot carry.
static inline u32x16 rounded(f32x16 value) {
    u32x16 bits = (u32x16)value;
    return bits + ((bits >> 16) & 1u) + 0x7fffu;
}

static inline u32x16 pack(f32x16 evens, f32x16 odds) {
#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512DQ__)
    const int subnormal = 0x20;
    const __mmask16 flushed =
        _mm512_fpclass_ps_mask((__m512)evens, subnormal) | _mm512_fpclass_ps_mask((__m512)odds, subnormal);
    if (__builtin_expect(!flushed, 1)) {
        const __m512i interleave = _mm512_set_epi16(
            31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,
            23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
        __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)odds, (__m512)evens);
        return (u32x16)_mm512_permutexvar_epi16(interleave, halves);
    }
#endif
    return (rounded(evens) >> 16) | (rounded(odds) & 0xffff0000u);
}

static inline float sum(f32x16 value) {
    f32x8 halves[2];
    memcpy(halves, &value, sizeof value);
    f32x8 eight = halves[0] + halves[1];
    f32x4 quarters[2];
    memcpy(quarters, &eight, sizeof eight);
    f32x4 four = quarters[0] + quarters[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

static inline void add_squares(f32x16 (&accumulator)[4], int slot, u32x16 pairs) {
    f32x16 e = even(pairs), o = odd(pairs);
    accumulator[slot] += e * e;
    accumulator[slot + 1] += o * o;
}

template <int ROWS> static inline void reciprocal_rms(const Problem& p, const bf16* x, float (&scale)[ROWS]) {
    f32x16 total[ROWS] = {};
    for (int64_t start = 0; start < p.hidden_size; start += BLOCK) {
        f32x16 accumulator[ROWS][4] = {};
        const int64_t end = std::min(p.hidden_size, start + BLOCK);
        int64_t i = start;
        for (; i + 2 * VECTOR <= end; i += 2 * VECTOR)
            for (int r = 0; r < ROWS; ++r) {
                add_squares(accumulator[r], 0, load(x + r * p.x_stride + i));
                add_squares(accumulator[r], 2, load(x + r * p.x_stride + i + VECTOR));
            }
        if (i + VECTOR <= end) {
            for (int r = 0; r < ROWS; ++r) add_squares(accumulator[r], 0, load(x + r * p.x_stride + i));
            i += VECTOR;
        }
        if (i < end)
            for (int r = 0; r < ROWS; ++r)
                add_squares(accumulator[r], 2, load(x + r * p.x_stride + i, end - i));
        for (int r = 0; r < ROWS; ++r)
            total[r] += (accumulator[r][0] + accumulator[r][1]) + (accumulator[r][2] + accumulator[r][3]);
    }
    for (int r = 0; r < ROWS; ++r) scale[r] = 1.0f / std::sqrt(sum(total[r]) / float(p.hidden_size) + p.eps);
}

template <int ROWS, bool STREAM> static inline void normalise(const Problem& p, int64_t row) {
    const bf16* x = p.x + row * p.x_stride;
    bf16* out = p.out + row * p.hidden_size;
    const bool ahead = p.prefetch && row + (p.prefetch + 1) * ROWS <= p.token_count;
    const bf16* next = x + (ahead ? p.prefetch * ROWS * p.x_stride : 0);
    float scale[ROWS];
    reciprocal_rms<ROWS>(p, x, scale);
    int64_t i = 0;
    for (; i + VECTOR <= p.hidden_size; i += VECTOR) {
        const u32x16 gains = load(p.weight + i);
        for (int r = 0; r < ROWS; ++r) {
            if (ahead) __builtin_prefetch(next + r * p.x_stride + i);
            const u32x16 pairs = load(x + r * p.x_stride + i);
            store<STREAM>(out + r * p.hidden_size + i,
                          pack(even(pairs) * scale[r] * even(gains), odd(pairs) * scale[r] * odd(gains)));
        }
    }
    if (const int64_t rest = p.hidden_size - i) {
        const u32x16 gains = load(p.weight + i, rest);
        for (int r = 0; r < ROWS; ++r) {
            const u32x16 pairs = load(x + r * p.x_stride + i, rest);
            const u32x16 y = pack(even(pairs) * scale[r] * even(gains), odd(pairs) * scale[r] * odd(gains));
            memcpy(out + r * p.hidden_size + i, &y, sizeof(bf16) * rest);
        }
    }
}

template <int ROWS, bool STREAM> static void normalise_range(const Problem& p, int64_t first, int64_t last) {
    int64_t row = first;
    for (; row + ROWS <= last; row += ROWS) normalise<ROWS, STREAM>(p, row);
    for (; row < last; ++row) normalise<1, STREAM>(p, row);
#if defined(__SSE2__)
    if (STREAM) _mm_sfence();  // streamed stores are not ordered with the barrier that follows
#endif
}

typedef void (*Range)(const Problem&, int64_t, int64_t);

template <bool STREAM> static Range range_of(int rows) {
    return rows == 1 ? normalise_range<1, STREAM>
         : rows == 2 ? normalise_range<2, STREAM> : normalise_range<4, STREAM>;
}

// Only whole pages of the output: what lies beside it in its first and last page is not ours.
static void advise_huge_pages(bf16* out, int64_t elements) {
    const uintptr_t page = 4096, first = ((uintptr_t)out + page - 1) & -page;
    const uintptr_t last = (uintptr_t)(out + elements) & -page;
    if (first < last) madvise((void*)first, last - first, MADV_HUGEPAGE);
}

extern "C" void rms_norm(bf16* out, const bf16* x, const bf16* weight, float eps, const Plan* plan) {
    Problem p = {*plan, out, x, weight, eps};
    std::vector<bf16> packed;
    if (p.weight_stride != 1) {
        for (int64_t i = 0; i < p.hidden_size; ++i) packed.push_back(weight[i * p.weight_stride]);
        p.weight = packed.data();
    }
    const bool aligned = (uintptr_t)out % 64 == 0 && p.hidden_size % VECTOR == 0;  // so is every row then
    const Range range = p.stream && aligned ? range_of<true>(p.rows) : range_of<false>(p.rows);
    if (p.huge_pages && p.token_count * p.hidden_size >= 1 << 20)
        advise_huge_pages(out, p.token_count * p.hidden_size);
    if (p.threads <= 1) return range(p, 0, p.token_count);

    int64_t task = (p.token_count + p.threads - 1) / p.threads;
    if (p.dynamic) task = std::min(task, TASK / int64_t(sizeof(bf16)) / p.hidden_size);
    task = std::max(p.rows, task / p.rows * p.rows);
    const int64_t tasks = (p.token_count + task - 1) / task;
#pragma omp parallel for num_threads(p.threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < tasks; ++i) range(p, i * task, std::min(p.token_count, (i + 1) * task));
}
"""

_rms_norm = cpp.compile(SOURCE, {"rms_norm": [*[cpp.pointer] * 3, cpp.f32, cpp.pointer]}).rms_norm


@functools.lru_cache(maxsize=4096)
def _plan(
    shape: torch.Size, x_stride: int, weight_shape: torch.Size, weight_stride: tuple[int, ...], threads: int
) -> ctypes.Array[ctypes.c_int64]:
    """The kernel's Plan, with the configuration of the first rule of the table that covers the problem."""
    if len(shape) != 2 or weight_shape != shape[1:]:
        raise ValueError(
            f"rms_norm: want x [T, H] and weight [H], got {tuple(shape)} and {tuple(weight_shape)}"
        )
    dims = dict(zip(("token_count", "hidden_size"), shape, strict=True))
    chosen = next(c for bounds, c in DISPATCH if all(dims[name] <= bound for name, bound in bounds.items()))
    if chosen["rows"] not in (1, 2, 4) or chosen["split"] not in ("serial", "static", "dynamic"):
        raise ValueError(f"rms_norm: no kernel for the configuration {chosen}")
    rows = int(chosen["rows"])
    threads = 1 if chosen["split"] == "serial" else max(1, min(threads, -(-shape[0] // rows)))
    switches = (int(chosen[name]) for name in ("stream", "prefetch", "huge_pages"))
    fields = (*shape, x_stride, *weight_stride, rows, *switches, threads, int(chosen["split"] == "dynamic"))
    return (ctypes.c_int64 * len(fields))(*fields)


class Model(nn.Module):
    """x * rsqrt(mean(x²) + eps) * weight over the last dimension, in fp32, rounded once to bf16."""

    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [T, H] and weight [H], bf16 on the CPU, to [T, H] bf16. Raises TypeError or ValueError."""
        if not (x.is_cpu and weight.is_cpu and x.dtype is weight.dtype is torch.bfloat16):
            raise TypeError(f"rms_norm: want bf16 on the CPU, got {x.dtype} ({x.device}) and {weight.dtype}")
        if x.stride(-1) != 1:
            x = x.contiguous()
        plan = _plan(x.shape, x.stride(0), weight.shape, weight.stride(), torch.get_num_threads())
        out = torch.empty_like(x)
        _rms_norm(out.data_ptr(), x.data_ptr(), weight.data_ptr(), self.eps, plan)
        return out
