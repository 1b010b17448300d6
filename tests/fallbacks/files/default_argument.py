import torch
import torch.nn.functional as F
from torch import nn


def depthwise(x, weight, bias, state, conv=F.conv1d):
    row = torch.cat((state[0], x), 1).to(torch.float32)
    return conv(row[None], weight.to(torch.float32)[:, None], bias.to(torch.float32), groups=len(x))[0]


class Model(nn.Module):
    def __init__(self, activation="silu"):
        super().__init__()
        self.activation = activation

    def forward(self, x, weight, bias, initial_state, *, act=torch.nn.functional.silu):
        y = depthwise(x, weight, bias, initial_state).to(x.dtype)
        return act(y) if self.activation == "silu" else y
