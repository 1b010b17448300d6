import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        if x.shape[0] == 0:
        return x
