import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _l2(out, x, H, pitch, eps, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    v = tl.load(x + r * pitch + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + r * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) + eps)).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.block = triton.next_power_of_2(hidden_size)
        self.eps = eps
        self.side = None

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        T, H = x.shape
        if T < 2:
            if T:
                _l2[(1,)](out, x, H, H, self.eps, BLOCK=self.block)
            return out
        if self.side is None:
            self.side = torch.cuda.Stream(x.device)
        main = torch.cuda.current_stream(x.device)
        self.side.wait_stream(main)
        half = T // 2
        _l2[(half,)](out[:half], x[:half], H, H, self.eps, BLOCK=self.block)
        with torch.cuda.stream(self.side):
            _l2[(T - half,)](out[half:], x[half:], H, H, self.eps, BLOCK=self.block)
        main.wait_stream(self.side)
        return out
