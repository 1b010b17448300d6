import ctypes
import os

import torch
from torch import nn

_lib = ctypes.CDLL(os.environ.get("RMS_LIBRARY", "./librms_norm.so"))
_lib.rms_norm_bf16.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_float, ctypes.c_void_p]


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        x, weight = x.contiguous(), weight.contiguous()
        out = torch.empty_like(x)
        stream = torch.cuda.current_stream().cuda_stream
        _lib.rms_norm_bf16(out.data_ptr(), x.data_ptr(), weight.data_ptr(), *x.shape, self.eps, stream)
        return out
