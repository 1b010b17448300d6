"""gate: none
Finds the k-th largest of a row byte by byte from histograms, then filters; short rows count what is larger.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _key(value):
    """Unsigned integers in the order of the floats: negative ones reversed, below the others."""
    bits = value.to(tl.uint32, bitcast=True)
    return tl.where(bits >> 31 != 0, ~bits, bits | 0x80000000)


@triton.jit
def _count(key, inside, prefix, shift: tl.constexpr):
    """How many keys that begin with `prefix` have each value of the byte at `shift`."""
    if shift < 24:
        inside = inside & (key >> (shift + 8) == prefix)
    return tl.histogram(((key >> shift) & 255).to(tl.int32), 256, inside)


@triton.jit
def _filter(out, logits, V, stride, k, WHOLE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    logits += row * stride
    out += row * V
    if WHOLE:
        value = tl.load(logits + lanes, lanes < V, other=0.0)
    bins = tl.arange(0, 256)
    prefix = tl.zeros([], tl.uint32)
    left = k  # the rank among the keys that begin with `prefix`
    for turn in tl.static_range(4):
        if WHOLE:
            count = _count(_key(value), lanes < V, prefix, 24 - 8 * turn)
        else:
            count = tl.zeros([256], tl.int32)
            for start in tl.range(0, V, BLOCK):
                inside = start + lanes < V
                part = tl.load(logits + start + lanes, inside, other=0.0)
                count += _count(_key(part), inside, prefix, 24 - 8 * turn)
        at_least = tl.cumsum(count, axis=0, reverse=True)
        byte = tl.sum((at_least >= left).to(tl.int32), axis=0) - 1
        left -= tl.sum(tl.where(bins > byte, count, 0), axis=0)
        prefix = (prefix << 8) | byte.to(tl.uint32)
    bits = tl.where(prefix >> 31 != 0, prefix ^ 0x80000000, ~prefix)
    least = bits.to(tl.float32, bitcast=True)
    if WHOLE:
        tl.store(out + lanes, tl.where(value < least, -float("inf"), value), lanes < V)
    else:
        for start in tl.range(0, V, BLOCK):
            inside = start + lanes < V
            part = tl.load(logits + start + lanes, inside, other=0.0)
            tl.store(out + start + lanes, tl.where(part < least, -float("inf"), part), inside)


@triton.jit
def _filter_short(out, logits, B, V, stride, k, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a few logits, all pairs compared: what fewer than k others exceed stays."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    lanes = tl.arange(0, BLOCK)
    inside = (row < B)[:, None] & (lanes < V)[None, :]
    at = logits + row[:, None] * stride + lanes[None, :]
    value = tl.load(at, inside, other=-float("inf"))
    larger = (value[:, None, :] > value[:, :, None]).to(tl.int32)
    kept = tl.where(tl.sum(larger, axis=2) < k, value, -float("inf"))
    tl.store(out + row[:, None] * V + lanes[None, :], kept, inside)


class Model(nn.Module):
    def __init__(self, top_k: int = 50) -> None:
        super().__init__()
        self.top_k = top_k

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        if logits.stride(-1) != 1:
            logits = logits.contiguous()
        B, V = logits.shape
        out = torch.empty((B, V), dtype=torch.float32, device=logits.device)
        k = min(self.top_k, V)
        if B > 0 and V <= 32:
            block = triton.next_power_of_2(V)
            rows = min(128, 4096 // block**2, triton.next_power_of_2(B))
            numbers = B, V, logits.stride(0), k, rows, block
            _filter_short[(triton.cdiv(B, rows),)](out, logits, *numbers, num_warps=4)
        elif B > 0:
            whole = V <= 8192
            block = max(128, triton.next_power_of_2(V)) if whole else 8192
            warps = min(16, block // 128) if whole else 16
            _filter[(B,)](out, logits, V, logits.stride(0), k, WHOLE=whole, BLOCK=block, num_warps=warps)
        return out
