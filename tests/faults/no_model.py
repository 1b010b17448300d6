"""fault: import"""

import torch


def forward(x, weight):
    return torch.zeros_like(x)
