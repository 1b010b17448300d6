"""fault: illegal access"""

import ctypes
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()

    def forward(self, x, weight):
        ctypes.string_at(8)
        return torch.zeros_like(x)
