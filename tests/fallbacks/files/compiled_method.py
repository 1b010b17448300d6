import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    @torch.compile
    def forward(self, x):
        if x.shape[-1] == 1:
            return functional.silu(x.float()).to(x.dtype)
        half = x.shape[-1] // 2
        return functional.silu(x[..., :half].float()).to(x.dtype) * x[..., half:]
