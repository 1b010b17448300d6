import torch
from liger_kernel.ops.rms_norm import LigerRMSNormFunction
from torch import nn


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return LigerRMSNormFunction.apply(x, weight, self.eps, 0.0, "gemma", False)
