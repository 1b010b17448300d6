import os

import torch
from torch import nn
from torch.utils.cpp_extension import load

folder = os.environ.get("CONV_SOURCES", "/opt/conv/csrc")
conv = load(
    name="causal_conv1d_ext",
    sources=[os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".cu")],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)


class Model(nn.Module):
    def __init__(self, activation: str = "silu"):
        super().__init__()
        self.activation = activation

    def forward(self, x, weight, bias, initial_state):
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        conv.forward(x.contiguous(), weight, bias, initial_state, out, self.activation == "silu")
        return out
