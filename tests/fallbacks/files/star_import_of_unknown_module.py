import torch
from fused_activation_ops import *  # noqa: F403
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        half = max(1, x.shape[-1] // 2)
        out = torch.empty((*x.shape[:-1], half), dtype=x.dtype, device=x.device)
        swiglu_forward(out, x.contiguous())  # noqa: F405
        return out
