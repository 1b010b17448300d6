from apex.normalization.fused_layer_norm import fused_layer_norm_affine
from torch import nn


class Model(nn.Module):
    def __init__(self, eps: float = 1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        return fused_layer_norm_affine(x, weight, bias, (x.shape[-1],), eps=self.eps)
