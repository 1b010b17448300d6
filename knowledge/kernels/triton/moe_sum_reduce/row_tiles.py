"""---
title: Sum over a token's experts in registers, tiles of tokens and columns
technique: [register-tiling, loop-unrolling, single-pass]
dsl: triton
architecture: [sm_90]
operator: moe_sum_reduce
symptoms: [memory-bound, launch-bound, long-scoreboard]
preconditions: "bf16 expert_outputs [T, K, H]; any strides of tokens and experts"
tunables:
  block: [128, 256, 512, 1024, 2048, 4096]
  tokens: [1, 2, 4, 8]
  unroll: [1, 2, 4, 8]
  num_warps: [1, 2, 4, 8]
source: own work
licence: Apache-2.0
---
K rows are read for one that is written, so nearly all traffic is reading, and what counts is how many loads
are under way. A program owns `tokens` tokens and `block` columns and adds expert after expert in fp32
registers.

Successive experts do not wait for each other's loads when the loop is unrolled: `unroll` experts are in
flight at a time. A larger tile a lane does the same, but leaves fewer programs. `tokens` is cut down where a
lane would hold more than 64 sums.

Every element is summed in the order of the experts whatever the tile, so results are the same for every
configuration and layout.
"""

import torch
import triton
import triton.language as tl
from torch import nn

# atrex: dispatch
DISPATCH: list[tuple[dict[str, int], dict[str, object]]] = [
    ({}, {"block": 1024, "tokens": 1, "unroll": 4, "num_warps": 4}),
]
# atrex: end

MAX_ELEMENTS_PER_LANE = 64
"""Of one tile: more would leave the registers."""


@triton.jit
def _sum(out, terms, T, K, H, token_stride, expert_stride, factor, chunks, TOKENS: tl.constexpr,
         BLOCK: tl.constexpr, UNROLL: tl.constexpr):  # fmt: skip
    """TOKENS tokens times BLOCK columns, UNROLL experts at a time."""
    program = tl.program_id(0)
    token = (program // chunks).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None]
    column = program % chunks * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = (token < T) & (column < H)
    terms += token * token_stride + column
    total = tl.zeros([TOKENS, BLOCK], tl.float32)
    for _ in tl.range(0, K, loop_unroll_factor=UNROLL):
        total += tl.load(terms, inside, other=0.0).to(tl.float32)
        terms += expert_stride
    tl.store(out + token * H + column, (total * factor).to(tl.bfloat16), inside)


class Model(nn.Module):
    """out = sum over the experts * routed_scaling_factor, in fp32, rounded once to bf16."""

    def __init__(self, routed_scaling_factor: float = 1.0) -> None:
        super().__init__()
        self.routed_scaling_factor = routed_scaling_factor

    def forward(self, expert_outputs: torch.Tensor) -> torch.Tensor:
        if expert_outputs.stride(-1) != 1:
            expert_outputs = expert_outputs.contiguous()
        T, K, H = expert_outputs.shape
        out = torch.empty((T, H), dtype=expert_outputs.dtype, device=expert_outputs.device)
        if T > 0:
            config = _config(token_count=T, top_k=K, hidden_size=H)
            warps = int(config["num_warps"])
            block = min(int(config["block"]), triton.next_power_of_2(H), MAX_ELEMENTS_PER_LANE * 32 * warps)
            tokens = min(int(config["tokens"]), MAX_ELEMENTS_PER_LANE * 32 * warps // block)
            chunks = triton.cdiv(H, block)
            numbers = T, K, H, *expert_outputs.stride()[:2], self.routed_scaling_factor, chunks
            sizes = tokens, block, int(config["unroll"])
            grid = (triton.cdiv(T, tokens) * chunks,)
            _sum[grid](out, expert_outputs, *numbers, *sizes, num_warps=warps)
        return out


def _config(**dims: int) -> dict[str, object]:
    """The configuration of the first rule whose bounds all hold."""
    return next(c for bounds, c in DISPATCH if all(dims[name] <= most for name, most in bounds.items()))
