import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    """High-performance RMSNorm kernel for H200."""

    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.eps)
