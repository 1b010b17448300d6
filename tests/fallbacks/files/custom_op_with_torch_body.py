import torch
from torch import nn


@torch.library.custom_op("fast_kernels::rms_norm", mutates_args=(), device_types=("cuda", "cpu"))
def rms_norm_kernel(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.float()
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    mean_square = norm * norm / x.shape[-1]
    return (wide * (mean_square + eps).rsqrt() * weight).to(x.dtype)


@rms_norm_kernel.register_fake
def _(x, weight, eps):
    return torch.empty_like(x)


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        return torch.ops.fast_kernels.rms_norm(x, weight, self.eps)
