"""fault: timeout"""

import time
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()

    def forward(self, x, weight):
        while True:
            time.sleep(1)
        return torch.zeros_like(x)
