import torch
from torch import nn


class Rows:
    def __init__(self, x, eps):
        self.x, self.eps = x, eps

    @property
    def wide(self):
        return self.x.float()

    @property
    def scale(self):
        return torch.rsqrt(self.wide.square().sum(dim=1, keepdim=True) + self.eps)

    @property
    def normalised(self):
        return (self.wide * self.scale).to(self.x.dtype)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return Rows(x, self.eps).normalised
