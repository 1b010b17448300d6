import torch
from torch import nn

try:
    import triton
    import triton.language as tl
except ImportError as error:  # a CPU-only installation
    raise RuntimeError("this candidate needs Triton") from error

try:
    from triton.language.extra import libdevice
except ImportError:
    libdevice = None


@triton.jit
def _rms(out, x, weight, H, stride, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    col = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + col, col < H, other=0.0).to(tl.float32)
    var = tl.sum(v * v, axis=0) / H
    w = tl.load(weight + col, col < H, other=0.0).to(tl.float32)
    tl.store(out + row * H + col, (v / tl.sqrt_rn(var + eps) * w).to(out.dtype.element_ty), col < H)


class Model(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        if x.dtype is not torch.bfloat16:
            raise NotImplementedError("bf16 only")
        x = x.contiguous()
        out = torch.empty_like(x)
        if x.shape[0] > 0:
            _rms[(x.shape[0],)](
                out,
                x,
                weight.contiguous(),
                x.shape[1],
                x.stride(0),
                self.eps,
                triton.next_power_of_2(x.shape[1]),
            )
        return out
