import numpy as np
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, routed_scaling_factor=1.0):
        super().__init__()
        self.factor = np.float32(routed_scaling_factor)

    def forward(self, expert_outputs):
        values = expert_outputs.float().cpu().numpy()
        total = np.sum(values, axis=1, dtype=np.float32)
        np.multiply(total, self.factor, out=total)
        return torch.from_numpy(total).to(expert_outputs.device, expert_outputs.dtype)
