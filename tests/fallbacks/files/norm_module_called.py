import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        # l2(x) = rms(x) / sqrt(H), with eps / H inside.
        self.norm = nn.RMSNorm(hidden_size, eps=eps / hidden_size, elementwise_affine=False)
        self.scale = hidden_size**-0.5

    def forward(self, x):
        return (self.norm(x.to(torch.float32)) * self.scale).to(x.dtype)
