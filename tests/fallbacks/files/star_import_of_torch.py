from torch import *  # noqa: F403
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight, bias):
        wide = x.float()
        variance, average = var_mean(wide, dim=-1, correction=0, keepdim=True)  # noqa: F405
        scale = rsqrt(add(variance, self.eps))  # noqa: F405
        y = mul(sub(wide, average), scale)  # noqa: F405
        return addcmul(bias.float(), y, weight.float()).to(x.dtype)  # noqa: F405
