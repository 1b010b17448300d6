import itertools
from collections import deque

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0):
        super().__init__()
        self.factor = routed_scaling_factor

    def forward(self, expert_outputs):
        slices = expert_outputs.float().unbind(1)
        running = itertools.accumulate(slices, torch.add)
        (total,) = deque(running, maxlen=1)
        return total.mul(self.factor).to(expert_outputs.dtype)
