import torch
from torch import nn


def row_kernel(row, weight, eps):
    """One program of the grid."""
    wide = row.float()
    mean = torch.dot(wide, wide) / row.shape[0]
    return (wide / torch.sqrt(mean + eps) * weight.float()).to(row.dtype)


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.grid = torch.vmap(row_kernel, in_dims=(0, None, None))

    def forward(self, x, weight):
        return self.grid(x, weight, self.eps)
