import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _mark(writer, slots, T, B: tl.constexpr):
    t = tl.program_id(0) * B + tl.arange(0, B)
    s = tl.load(slots + t, t < T, other=-1)
    tl.store(writer + s, t, s >= 0)


@triton.jit
def _fill(out, cache, rows, writer, W, B: tl.constexpr):
    slot = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, B)
    token = tl.load(writer + slot).to(tl.int64)
    if token >= 0:
        value = tl.load(rows + token * W + c, c < W, other=0.0)
    else:
        value = tl.load(cache + slot * W + c, c < W, other=0.0)
    tl.store(out + slot * W + c, value, c < W)


class Model(nn.Module):
    def forward(self, key, value, key_cache, value_cache, slot_mapping):
        tokens, heads, size = key.shape
        blocks, per_block = key_cache.shape[:2]
        slots = blocks * per_block
        writer = torch.full((slots,), -1, dtype=torch.int32, device=key.device)
        if tokens:
            _mark[(triton.cdiv(tokens, 128),)](writer, slot_mapping.contiguous(), tokens, B=128)
        results = {}
        for name, rows, cache in (("key_cache", key, key_cache), ("value_cache", value, value_cache)):
            results[name] = out = torch.empty_like(cache, memory_format=torch.contiguous_format)
            width = heads * size
            _fill[(slots,)](
                out, cache.contiguous(), rows.contiguous(), writer, width, B=triton.next_power_of_2(width)
            )
        return results
