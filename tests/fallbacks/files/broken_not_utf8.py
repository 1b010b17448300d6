"""Schnelle Normierung für große Zeilen."""
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)
