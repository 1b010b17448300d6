import torch
from numba import cuda
from torch import nn


@cuda.jit
def scale_shift(out, x, scale, shift):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] * scale + shift


class ModelNew(nn.Module):
    """y = scale * x + shift on flat fp32 tensors."""

    def __init__(self, scale: float = 2.0, shift: float = 1.0):
        super().__init__()
        self.scale, self.shift = scale, shift

    def forward(self, x):
        flat = x.contiguous().view(-1)
        out = torch.empty_like(flat)
        threads = 256
        blocks = (flat.numel() + threads - 1) // threads
        scale_shift[blocks, threads](
            cuda.as_cuda_array(out), cuda.as_cuda_array(flat), self.scale, self.shift
        )
        return out.view(x.shape)
