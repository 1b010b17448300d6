import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _persistent(out, new, x, res, w, T, H, xs, rs, eps, BLOCK: tl.constexpr):
    c = tl.arange(0, BLOCK)
    live = c < H
    gain = tl.load(w + c, live, other=0.0).to(tl.float32)
    for r in tl.range(tl.program_id(0), T, tl.num_programs(0)):
        row = tl.cast(r, tl.int64)
        a = tl.load(x + row * xs + c, live, other=0.0).to(tl.float32)
        b = tl.load(res + row * rs + c, live, other=0.0).to(tl.float32)
        s = (a + b).to(tl.bfloat16)
        tl.store(new + row * H + c, s, live)
        s = s.to(tl.float32)
        tl.store(out + row * H + c, (s * tl.rsqrt(tl.sum(s * s, 0) / H + eps) * gain).to(tl.bfloat16), live)


def processors(device) -> int:
    if device.type != "cuda":
        return 8
    return torch.cuda.get_device_properties(device).multi_processor_count


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, residual, weight):
        x = x if x.stride(-1) == 1 else x.contiguous()
        residual = residual if residual.stride(-1) == 1 else residual.contiguous()
        T, H = x.shape
        out, new = (torch.empty((T, H), dtype=x.dtype, device=x.device) for _ in range(2))
        if T:
            _persistent[(min(T, 4 * processors(x.device)),)](
                out,
                new,
                x,
                residual,
                weight.contiguous(),
                T,
                H,
                x.stride(0),
                residual.stride(0),
                self.eps,
                BLOCK=triton.next_power_of_2(H),
                num_warps=8,
            )
        return dict(out=out, residual=new)
