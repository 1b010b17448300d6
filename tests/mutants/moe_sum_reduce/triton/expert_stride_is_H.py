"""gate: layouts
Takes the experts' outputs of a token for packed.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _sum(out, terms, K, H, token_stride, expert_stride, factor, chunks, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    token = (program // chunks).to(tl.int64)
    columns = program % chunks * BLOCK + tl.arange(0, BLOCK)
    inside = columns < H
    terms += token * token_stride + columns
    total = tl.zeros([BLOCK], tl.float32)
    for _ in tl.range(0, K, loop_unroll_factor=4):
        total += tl.load(terms, inside, other=0.0).to(tl.float32)
        terms += expert_stride
    tl.store(out + token * H + columns, (total * factor).to(tl.bfloat16), inside)


class Model(nn.Module):
    def __init__(self, routed_scaling_factor: float = 1.0) -> None:
        super().__init__()
        self.routed_scaling_factor = routed_scaling_factor

    def forward(self, expert_outputs: torch.Tensor) -> torch.Tensor:
        if expert_outputs.stride(-1) != 1:
            expert_outputs = expert_outputs.contiguous()
        T, K, H = expert_outputs.shape
        out = torch.empty((T, H), dtype=expert_outputs.dtype, device=expert_outputs.device)
        if T > 0:
            block = min(1024, triton.next_power_of_2(H))
            chunks = triton.cdiv(H, block)
            strides = expert_outputs.stride(0), H
            factor = self.routed_scaling_factor
            warps = max(1, block // 256)
            _sum[(T * chunks,)](out, expert_outputs, K, H, *strides, factor, chunks, block, num_warps=warps)
        return out
