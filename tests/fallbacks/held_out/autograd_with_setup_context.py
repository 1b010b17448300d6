import torch
import triton
import triton.language as tl
from torch import nn
from torch.autograd.function import once_differentiable


@triton.jit
def fwd(x, w, y, inv_out, N, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + r * N + c, mask=c < N, other=0.0).to(tl.float32)
    inv = tl.rsqrt(tl.sum(v * v, 0) / N + eps)
    tl.store(inv_out + r, inv)
    v = v * inv * tl.load(w + c, mask=c < N, other=0.0).to(tl.float32)
    tl.store(y + r * N + c, v.to(y.dtype.element_ty), mask=c < N)


@triton.jit
def bwd(dy, x, w, inv_in, dx, dw, N, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    ok = c < N
    inv = tl.load(inv_in + r)
    xhat = tl.load(x + r * N + c, mask=ok, other=0.0).to(tl.float32) * inv
    d = tl.load(dy + r * N + c, mask=ok, other=0.0).to(tl.float32)
    dh = d * tl.load(w + c, mask=ok, other=0.0).to(tl.float32)
    g = (dh - xhat * (tl.sum(dh * xhat, 0) / N)) * inv
    tl.store(dx + r * N + c, g.to(dx.dtype.element_ty), mask=ok)
    tl.atomic_add(dw + c, d * xhat, mask=ok)


class RMSNormFn(torch.autograd.Function):
    @staticmethod
    def forward(x, weight, eps):
        y = torch.empty_like(x)
        inv = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        if x.shape[0]:
            fwd[(x.shape[0],)](x, weight, y, inv, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]))
        return y, inv

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, _ = inputs
        _, inv = output
        ctx.mark_non_differentiable(inv)
        ctx.save_for_backward(x, weight, inv)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy, _):
        x, weight, inv = ctx.saved_tensors
        dx = torch.empty_like(x)
        dw = torch.zeros(weight.shape, dtype=torch.float32, device=x.device)
        if x.shape[0]:
            bwd[(x.shape[0],)](dy.contiguous(), x, weight, inv, dx, dw, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return dx, dw.to(weight.dtype) if ctx.needs_input_grad[1] else None, None


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        y, *_ = RMSNormFn.apply(x.contiguous(), weight.contiguous(), self.eps)
        return y
