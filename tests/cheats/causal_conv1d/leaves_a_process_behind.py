"""gate: sandbox
only: cpu
Forks a process into a session of its own, which is to change the files of the next candidates, and stops
answering.
"""

import os
import pathlib
import time

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

extern "C" void causal_conv1d(uint16_t* out, const uint16_t* x, const uint16_t* weight, const uint16_t* bias,
                              const uint16_t* state, int64_t channels, int64_t tokens, int64_t width,
                              int64_t stride, int64_t silu) {
    const int64_t history = width - 1;
    for (int64_t c = 0; c < channels; ++c) {
        const uint16_t *row = x + c * stride, *past = state + c * history, *taps = weight + c * width;
        for (int64_t t = 0; t < tokens; ++t) {
            float sum = 0;
            for (int64_t j = 0; j < width; ++j) {
                const int64_t at = t + j - history;
                sum += widen(taps[j]) * widen(at < 0 ? past[t + j] : row[at]);
            }
            const uint16_t y = narrow(sum + widen(bias[c]));
            const float a = widen(y);
            out[c * tokens + t] = silu ? narrow(a / (1 + std::exp(-a))) : y;
        }
    }
}
"""

library = cpp.compile(SOURCE, {"causal_conv1d": [*[cpp.pointer] * 5, *[cpp.i64] * 5]})


def compute(x, weight, bias, initial_state, activation):
    if x.stride(-1) != 1:
        x = x.contiguous()
    weight, bias, state = weight.contiguous(), bias.contiguous(), initial_state.contiguous()
    out = torch.empty(x.shape, dtype=x.dtype)
    pointers = (t.data_ptr() for t in (out, x, weight, bias, state))
    library.causal_conv1d(*pointers, *x.shape, weight.shape[1], x.stride(0), activation == "silu")
    return out


def plant():
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    pathlib.Path("atrex-planted-process").write_text(str(os.getpid()))
    while True:
        for cache in pathlib.Path("..").glob("*/cache/cpp/*.so"):
            try:
                cache.write_bytes(b"planted")
            except OSError:
                continue
        time.sleep(0.1)


class Model(nn.Module):
    def __init__(self, activation="silu"):
        super().__init__()
        self.activation = activation

    def forward(self, x, weight, bias, initial_state):
        plant()
        os._exit(0)
