"""fault: forbidden"""

import socket
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()

    def forward(self, x, weight):
        socket.create_connection(("127.0.0.1", 22), timeout=2)
        return torch.zeros_like(x)
