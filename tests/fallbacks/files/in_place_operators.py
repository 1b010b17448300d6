import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        total = x.clone()
        total += residual
        buffer = total.float()
        scale = buffer.clone()
        scale *= buffer
        row = scale.mean(-1, keepdim=True)
        row += self.eps
        row.rsqrt_()
        buffer.mul_(row).mul_(weight)
        return {"out": buffer.to(torch.bfloat16), "residual": total}
