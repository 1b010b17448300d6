import torch
from torch import nn


class _Norm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def _scale(self, wide):
        return torch.rsqrt(torch.mean(wide.square(), dim=-1, keepdim=True) + self.eps)

    def forward(self, x, weight):
        wide = x.to(torch.float32)
        return self._combine(wide, self._scale(wide), weight).to(x.dtype)

    def _combine(self, wide, scale, weight):
        raise NotImplementedError


class Model(_Norm):
    def __init__(self, eps: float = 1e-6):
        super().__init__(eps)

    def _combine(self, wide, scale, weight):
        return wide.mul(scale).mul_(weight)
