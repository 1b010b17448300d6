import torch
import triton
import triton.language as tl
from torch import nn
from torch.library import triton_op, wrap_triton


@triton.jit
def rms_norm_kernel(out_ptr, x_ptr, w_ptr, H, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * H + cols, mask=cols < H, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + cols, mask=cols < H, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, axis=0) / H + eps)
    tl.store(out_ptr + row * H + cols, (x * rstd * w).to(tl.bfloat16), mask=cols < H)


@triton_op("atrex_wrapped::rms_norm", mutates_args={})
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    out = torch.empty_like(x)
    n_rows, H = x.shape
    if n_rows > 0:
        wrap_triton(rms_norm_kernel)[(n_rows,)](out, x, weight, H, eps, BLOCK=triton.next_power_of_2(H))
    return out


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.contiguous(), weight.contiguous(), self.eps)
