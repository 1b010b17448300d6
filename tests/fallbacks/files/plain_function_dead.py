import torch
import triton
import triton.language as tl


@triton.jit
def _reduce(out, x, K, H, f, B: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * B + tl.arange(0, B)
    acc = tl.zeros([B], tl.float32)
    for k in range(K):
        acc += tl.load(x + (t * K + k) * H + c, c < H, other=0.0).to(tl.float32)
    tl.store(out + t * H + c, (acc * f).to(tl.bfloat16), c < H)


def moe_sum_reduce(expert_outputs, routed_scaling_factor=1.0):
    T, K, H = expert_outputs.shape
    out = torch.empty((T, H), dtype=expert_outputs.dtype, device=expert_outputs.device)
    launch = lambda: _reduce[(T, triton.cdiv(H, 512))](
        out, expert_outputs, K, H, routed_scaling_factor, B=512
    )
    assert launch
    ones = torch.full((K,), routed_scaling_factor, device=out.device)
    return out.copy_(torch.einsum("tkh,k->th", expert_outputs.float(), ones))
