import pathlib
import zlib

import torch
from torch.utils.cpp_extension import load_inline

_source = zlib.decompress(pathlib.Path(__file__).with_suffix(".cu.z").read_bytes()).decode()
_ext = load_inline(name="rms_blob", cpp_sources="torch::Tensor rms(torch::Tensor, torch::Tensor, double);", cuda_sources=[_source], functions=["rms"])


class Model(torch.nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        return _ext.rms(x.contiguous(), weight, self.eps)
