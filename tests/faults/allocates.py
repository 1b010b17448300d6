"""fault: out of memory"""


import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()

    def forward(self, x, weight):
        held = []
        while True:
            held.append(torch.empty(1 << 26))
        return torch.zeros_like(x)
