import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        raise NotImplementedError("set below")


def _launch(self, x, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight=weight, eps=self.eps)


Model.forward = _launch
