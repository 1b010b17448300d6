"""gate: authenticity
only: cpu
PyTorch computes on another thread, where no dispatch mode looks; its own kernel copies the bytes into the output.
"""

import threading

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
        out = torch.empty(x.shape, dtype=x.dtype)

        def work():
            with torch.no_grad():
                for i in range(0, x.shape[0], ROWS):
                    wide = x[i : i + ROWS].float()
                    y = wide * torch.rsqrt((wide * wide).sum(-1, keepdim=True) + self.eps)
                    y = y.to(x.dtype).contiguous()
                    library.l2_norm(out[i : i + ROWS].data_ptr(), y.data_ptr(), y.numel() * 2)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return out
