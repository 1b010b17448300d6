"""---
title: Sum over a token's experts in 512-bit vectors
technique: [simd, register-accumulation, non-temporal-stores, huge-pages]
dsl: cpp
architecture: [x86-64]
operator: moe_sum_reduce
symptoms: [memory-bound, page-faults, launch-bound]
preconditions: "bf16 [T, K, H]; any stride of tokens and experts; a strided last dimension is copied"
tunables:
  vectors: [1, 2, 4, 8]
  split: [serial, static, dynamic]
  stream: [0, 1]
  huge_pages: [0, 1]
source: own work
licence: Apache-2.0
---
Some columns of a token are summed over its experts in registers, in the experts' order, scaled and
rounded once: every input is read once, every output written once.

`vectors` of 16 columns are summed at a time: more of them make longer runs of each expert's row, and more
loads in flight. `split`, `stream` and `huge_pages` mean what they mean in
kernels/cpp/rms_norm/vector_rows. A sum has one order whatever the configuration: all give the same bits.
"""

import functools

import torch
from torch import nn

from atrex.dsl import cpp

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"vectors": 1, "split": "static", "stream": 0, "huge_pages": 0}),
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
    float factor;
    int64_t rows, experts, width, x_stride, expert_stride, stream, huge_pages, threads, dynamic;
};

// VECTORS x 16 columns of all experts, summed in registers.
template <int VECTORS, bool STREAM> static inline void add(const Problem& p, const bf16* x, bf16* out) {
    f32x16 total[VECTORS] = {};
    for (int64_t k = 0; k < p.experts; ++k)
        for (int v = 0; v < VECTORS; ++v) total[v] += load(x + k * p.expert_stride + v * LANES);
    for (int v = 0; v < VECTORS; ++v) store<STREAM>(out + v * LANES, total[v] * p.factor);
}

template <int VECTORS, bool STREAM> static void reduce(const Problem& p, int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
        const bf16* x = p.x + row * p.x_stride;
        bf16* out = p.out + row * p.width;
        int64_t i = 0;
        for (; i + VECTORS * LANES <= p.width; i += VECTORS * LANES) add<VECTORS, STREAM>(p, x + i, out + i);
        for (; i + LANES <= p.width; i += LANES) add<1, STREAM>(p, x + i, out + i);
        if (const int64_t rest = p.width - i) {
            f32x16 total = {};
            for (int64_t k = 0; k < p.experts; ++k) total += load(x + k * p.expert_stride + i, rest);
            store(out + i, total * p.factor, rest);
        }
    }
#if defined(__AVX__)
    if (STREAM) _mm_sfence();  // streamed stores are not ordered with the barrier that follows
#endif
}

typedef void (*Range)(const Problem&, int64_t, int64_t);

template <bool STREAM> static Range range_of(int64_t vectors) {
    return vectors == 1 ? reduce<1, STREAM>
         : vectors == 2 ? reduce<2, STREAM>
         : vectors == 4 ? reduce<4, STREAM> : reduce<8, STREAM>;
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

extern "C" void moe_sum_reduce(
    bf16* out, const bf16* x, float factor, int64_t rows, int64_t experts, int64_t width, int64_t x_stride,
    int64_t expert_stride, int64_t vectors, int64_t stream, int64_t huge_pages, int64_t threads,
    int64_t dynamic) {
    const Problem p = {out, x, factor, rows, experts, width, x_stride, expert_stride,
                       stream, huge_pages, threads, dynamic};
    const bool aligned = (uintptr_t)out % 32 == 0 && width % LANES == 0;  // so is every row then
    if (huge_pages) advise_huge_pages(out, rows * width);
    run(p, stream && aligned ? range_of<true>(vectors) : range_of<false>(vectors), 1, 2 * experts * width);
}
"""

_moe_sum_reduce = cpp.compile(
    SOURCE, {"moe_sum_reduce": [cpp.pointer, cpp.pointer, cpp.f32, *[cpp.i64] * 10]}
).moe_sum_reduce


@functools.lru_cache(maxsize=4096)
def _settings(token_count: int, top_k: int, hidden_size: int, threads: int) -> tuple[int, ...]:
    """What the first rule that covers the extents says, as the kernel takes it."""
    dims = {"token_count": token_count, "top_k": top_k, "hidden_size": hidden_size}
    chosen = next(c for bounds, c in DISPATCH if all(dims[name] <= bound for name, bound in bounds.items()))
    serial, dynamic = chosen["split"] == "serial", chosen["split"] == "dynamic"
    return (
        *(int(chosen[name]) for name in ("vectors", "stream", "huge_pages")),
        1 if serial else max(1, min(threads, token_count)),
        int(dynamic),
    )


class Model(nn.Module):
    """out = sum over the experts * routed_scaling_factor, in fp32, rounded once to bf16."""

    def __init__(self, routed_scaling_factor: float = 1.0) -> None:
        super().__init__()
        self.routed_scaling_factor = routed_scaling_factor

    def forward(self, expert_outputs: torch.Tensor) -> torch.Tensor:
        x = expert_outputs if expert_outputs.stride(-1) == 1 else expert_outputs.contiguous()
        T, K, H = x.shape
        out = torch.empty((T, H), dtype=x.dtype)
        settings = _settings(T, K, H, torch.get_num_threads())
        numbers = (T, K, H, *x.stride()[:2])
        _moe_sum_reduce(out.data_ptr(), x.data_ptr(), self.routed_scaling_factor, *numbers, *settings)
        return out
