import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _l2(out, x, T, H, pitch, eps, BLOCK: tl.constexpr):
    for row in tl.range(tl.program_id(0), T, tl.num_programs(0)):
        c = tl.arange(0, BLOCK)
        at = tl.cast(row, tl.int64)
        v = tl.load(x + at * pitch + c, c < H, other=0.0).to(tl.float32)
        tl.store(out + at * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) + eps)).to(tl.bfloat16), c < H)


class Model(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.programs = {}

    def _occupancy(self, out, x, T, H, block):
        if x.device.type != "cuda":
            return T
        compiled = _l2.warmup(out, x, T, H, x.stride(0), self.eps, BLOCK=block, num_warps=4, grid=(1,))
        compiled._init_handles()
        properties = torch.cuda.get_device_properties(x.device)
        per_processor = max(1, 65536 // max(1, compiled.n_regs * 32 * 4))
        return properties.multi_processor_count * per_processor

    def forward(self, x):
        x = x.contiguous()
        T, H = x.shape
        out = torch.empty_like(x)
        if T == 0:
            return out
        block = triton.next_power_of_2(H)
        if block not in self.programs:
            self.programs[block] = self._occupancy(out, x, T, H, block)
        _l2[(min(T, self.programs[block]),)](out, x, T, H, x.stride(0), self.eps, BLOCK=block, num_warps=4)
        return out
