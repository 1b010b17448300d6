import torch
from torch import nn


def _fused(x, residual, weight, eps: float):
    total = x + residual
    wide = total.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.float()).to(x.dtype), total


fused_kernel = torch.compile(_fused, mode="max-autotune-no-cudagraphs", fullgraph=True, dynamic=False)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        out, total = fused_kernel(x, residual, weight, self.eps)
        return {"out": out, "residual": total}
