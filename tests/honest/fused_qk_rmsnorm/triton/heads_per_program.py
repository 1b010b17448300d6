"""gate: none
Some heads of one token a program: q and k heads are normalised over the tile's last axis, v heads copied.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _qk_norm(
    out,
    x,
    q_weight,
    k_weight,
    Hq,
    Hkv,
    D,
    x_stride,
    q_stride,
    k_stride,
    eps,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    element = tl.arange(0, BLOCK)[None, :]
    inside = (head < Hq + 2 * Hkv) & (element < D)
    column = head * D + element
    copied = tl.load(x + token * x_stride + column, inside, other=0.0)
    value = copied.to(tl.float32)
    q_gain = tl.load(q_weight + element * q_stride, element < D, other=0.0).to(tl.float32)
    k_gain = tl.load(k_weight + element * k_stride, element < D, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value * value, axis=1, keep_dims=True), D * 1.0)
    scale = tl.div_rn(1.0, tl.sqrt_rn(mean + eps))
    normed = (value * scale).to(copied.dtype).to(tl.float32)
    y = (normed * tl.where(head < Hq, q_gain, k_gain)).to(copied.dtype)
    y = tl.where(head < Hq + Hkv, y, copied)
    tl.store(out + token * (Hq + 2 * Hkv) * D + column, y, inside)


class Model(nn.Module):
    def __init__(self, head_num: int, kv_head_num: int, size_per_head: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.extents = head_num, kv_head_num, size_per_head
        self.eps = eps

    def forward(
        self, hidden_states: torch.Tensor, q_weight: torch.Tensor, k_weight: torch.Tensor
    ) -> torch.Tensor:
        x = hidden_states if hidden_states.stride(-1) == 1 else hidden_states.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        T = x.shape[0]
        if T > 0:
            Hq, Hkv, D = self.extents
            block = triton.next_power_of_2(D)
            count = Hq + 2 * Hkv
            heads = min(triton.next_power_of_2(count), max(1, 2048 // block))
            _qk_norm[(T, triton.cdiv(count, heads))](
                out,
                x,
                q_weight,
                k_weight,
                Hq,
                Hkv,
                D,
                x.stride(0),
                q_weight.stride(0),
                k_weight.stride(0),
                self.eps,
                HEADS=heads,
                BLOCK=block,
                num_warps=max(1, min(16, heads * block // 512)),
            )
        return out
