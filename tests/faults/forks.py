"""fault: launch, timeout, exited or forbidden"""

import os
import time
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()

    def forward(self, x, weight):
        while True:
            if os.fork() == 0:
                time.sleep(60)
        return torch.zeros_like(x)
