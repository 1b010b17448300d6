"""RMSNorm, tuned: the number of running sums and the split over threads are parameters."""

import torch
from torch import nn

from atrex.dsl import cpp

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"lanes": 16, "split": "threads"}),
]
# atrex: end

SOURCE = r"""
#include <cmath>
#include <cstdint>
#include <cstring>

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

template <int LANES>
static float sum_of_squares(const uint16_t* row, int64_t hidden) {
    float lanes[LANES] = {}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= hidden; i += LANES)
        for (int64_t j = 0; j < LANES; ++j) lanes[j] += widen(row[i + j]) * widen(row[i + j]);
    for (; i < hidden; ++i) lanes[i % LANES] += widen(row[i]) * widen(row[i]);
    for (float lane : lanes) sum += lane;
    return sum;
}

static float sum_of_squares(const uint16_t* row, int64_t hidden, int64_t lanes) {
    switch (lanes) {
        case 16: return sum_of_squares<16>(row, hidden);
        case 32: return sum_of_squares<32>(row, hidden);
        case 64: return sum_of_squares<64>(row, hidden);
        default: return sum_of_squares<128>(row, hidden);
    }
}

extern "C" void rms_norm(uint16_t* __restrict out, const uint16_t* __restrict x,
                         const uint16_t* __restrict weight,
                         int64_t rows, int64_t hidden, int64_t x_stride, int64_t threads, int64_t lanes,
                         float eps) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* row = x + r * x_stride;
        const float scale = 1 / std::sqrt(sum_of_squares(row, hidden, lanes) / hidden + eps);
        for (int64_t i = 0; i < hidden; ++i)
            out[r * hidden + i] = narrow(widen(row[i]) * scale * widen(weight[i]));
    }
}
"""

library = cpp.compile(SOURCE, {"rms_norm": [*[cpp.pointer] * 3, *[cpp.i64] * 5, cpp.f32]})


def config(rows: int, hidden: int) -> dict[str, object]:
    """Of the first rule that holds."""
    at = {"token_count": rows, "hidden_size": hidden}
    return next(c for bounds, c in DISPATCH if all(at[name] <= most for name, most in bounds.items()))


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if x.stride(-1) != 1:
            x = x.contiguous()
        weight = weight.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr()
        chosen = config(*x.shape)
        threads = torch.get_num_threads() if chosen["split"] == "threads" else 1
        library.rms_norm(*pointers, *x.shape, x.stride(0), threads, chosen["lanes"], self.eps)
        return out
