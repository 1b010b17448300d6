"""fault: forbidden"""

from pathlib import Path

import atrex
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()

    def forward(self, x, weight):
        Path(atrex.__file__).with_name("planted.py").write_text("planted")
        return torch.zeros_like(x)
