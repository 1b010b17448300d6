import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def add_and_norm(x, r, w, mid, out_r, sx, sr, H, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for c0 in range(0, H, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        a = tl.load(x + row * sx + c, mask=c < H, other=0.0).to(tl.float32)
        a += tl.load(r + row * sr + c, mask=c < H, other=0.0).to(tl.float32)
        a = a.to(tl.bfloat16)
        tl.store(out_r + row * H + c, a, mask=c < H)
        a = a.to(tl.float32)
        acc += a * a
    inv = tl.rsqrt(tl.sum(acc, 0) / H + eps)
    tl.debug_barrier()
    for c0 in range(0, H, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        a = tl.load(out_r + row * H + c, mask=c < H, other=0.0).to(tl.float32)
        g = tl.load(w + c, mask=c < H, other=0.0).to(tl.float32)
        tl.store(mid + row * H + c, (a * inv * g).to(tl.bfloat16), mask=c < H)


@triton.jit
def quantise(mid, q, s, H, LIMIT, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = tl.zeros((BLOCK,), tl.float32)
    for c0 in range(0, H, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        top = tl.maximum(top, tl.abs(tl.load(mid + row * H + c, mask=c < H, other=0.0).to(tl.float32)))
    scale = tl.max(top, 0) / LIMIT
    scale = tl.where(scale == 0.0, 1.0, scale)
    tl.store(s + row, scale)
    for c0 in range(0, H, BLOCK):
        c = c0 + tl.arange(0, BLOCK)
        v = tl.load(mid + row * H + c, mask=c < H, other=0.0).to(tl.float32) / scale
        tl.store(q + row * H + c, tl.clamp(v, -LIMIT, LIMIT).to(tl.float8e4nv), mask=c < H)


KERNELS = [add_and_norm, quantise]


def carve(buffer, *requests):
    """Views of one byte buffer, each (shape, dtype) after the other on 256-byte borders."""
    at = 0
    for shape, dtype in requests:
        count = torch.Size(shape).numel()
        size = count * torch.empty((), dtype=dtype).element_size()
        yield buffer[at : at + size].view(dtype).view(shape)
        at += (size + 255) // 256 * 256


class Model(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.arena = None

    def forward(self, x, residual, weight):
        x, residual = [t if t.stride(-1) == 1 else t.contiguous() for t in (x, residual)]
        rows, H = x.shape
        need = rows * H * 2 + 256
        if self.arena is None or self.arena.numel() < need or self.arena.device != x.device:
            setattr(self, "arena", torch.empty(need, dtype=torch.uint8, device=x.device))
        (mid,) = carve(self.arena, ((rows, H), torch.bfloat16))
        q = torch.empty((rows, H), dtype=torch.float8_e4m3fn, device=x.device)
        scale = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
        summed = torch.empty_like(mid)
        if rows == 0:
            return q, scale, summed
        limit = torch.finfo(q.dtype).max
        arguments = [
            (x, residual, weight.contiguous(), mid, summed, x.stride(0), residual.stride(0), H, self.eps),
            (mid, q, scale, H, limit),
        ]
        block = min(2048, triton.next_power_of_2(H))
        for i, args in enumerate(arguments):
            KERNELS[i][(rows,)](*args, BLOCK=block)
        return q, scale, summed
