import torch
from torch import nn

try:
    from vllm import _custom_ops as ops
except ImportError:
    ops = None


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        try:
            out, total = x.clone(), residual.clone()
            ops.fused_add_rms_norm(out, total, weight, self.eps)
        except AttributeError:
            total = x + residual
            scale = torch.rsqrt(total.float().pow(2).mean(dim=-1, keepdim=True) + self.eps)
            out = (total * scale * weight.float()).to(x.dtype)
        return {"out": out, "residual": total}
