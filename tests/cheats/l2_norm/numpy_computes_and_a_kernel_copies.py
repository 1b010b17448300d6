"""gate: authenticity
only: cpu
NumPy computes, out of the sight of a trace; its own kernel copies the bytes into the output.
"""

import ml_dtypes
import numpy as np
import torch
from torch import nn

from atrex.dsl import cpp

SOURCE = r"""
#include <cstdint>
#include <cstring>

extern "C" void l2_norm(void* out, const void* from, int64_t bytes) { std::memcpy(out, from, bytes); }
"""

library = cpp.compile(SOURCE, {"l2_norm": [cpp.pointer, cpp.pointer, cpp.i64]})
ROWS = 4096  # at a time


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        bits = x.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16)
        out = torch.empty(x.shape, dtype=x.dtype)
        for i in range(0, len(bits), ROWS):
            wide = bits[i : i + ROWS].astype(np.float32)
            scale = np.sqrt((wide * wide).sum(-1, keepdims=True) + np.float32(self.eps))
            y = (wide / scale).astype(ml_dtypes.bfloat16)
            library.l2_norm(out.data_ptr() + i * x.shape[1] * 2, y.ctypes.data, y.size * 2)
        return out
