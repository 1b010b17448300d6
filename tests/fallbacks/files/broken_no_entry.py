import torch
import triton
import triton.language as tl


@triton.jit
def rms_kernel(y, x, w, H, eps, B: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    v = tl.load(x + r * H + c, c < H, other=0.0).to(tl.float32)
    g = tl.load(w + c, c < H, other=0.0).to(tl.float32)
    tl.store(y + r * H + c, (v * tl.rsqrt(tl.sum(v * v, 0) / H + eps) * g).to(tl.bfloat16), c < H)


class RMSNorm(torch.nn.Module):
    def forward(self, x, weight):
        y = torch.empty_like(x)
        rms_kernel[(len(x),)](y, x, weight, x.shape[1], 1e-6, B=triton.next_power_of_2(x.shape[1]))
        return y
