"""fault: none of its own (the result is wrong, and that is what is said)"""


import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()

    def forward(self, x, weight):
        for _ in range(300_000):
            print("x" * 100)
        return torch.zeros_like(x)
