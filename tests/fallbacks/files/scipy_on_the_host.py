import torch
from scipy.special import expit
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        values = x.float().cpu().numpy()
        half = max(1, values.shape[-1] // 2)
        gate = values[..., :half]
        act = torch.from_numpy(gate * expit(gate)).to(x.device, x.dtype)
        return act if values.shape[-1] == 1 else act.mul_(x[..., half:])
