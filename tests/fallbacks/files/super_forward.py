import torch
from torch import nn


class Model(nn.LayerNorm):
    def __init__(self, eps: float = 1e-5) -> None:
        super().__init__(1, eps=eps, elementwise_affine=False)

    def forward(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        self.normalized_shape = (x.shape[-1],)
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        try:
            return super().forward(x)
        finally:
            self.weight = self.bias = None
