import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        wide = x.to(torch.float32)
        total = (wide**2).sum(-1, keepdim=True) + self.eps
        y = wide * total**-0.5
        return y.to(x.dtype)
