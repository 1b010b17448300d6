"""A kernel for Triton's interpreter."""

import triton
import triton.language as tl


@triton.jit
def add_one(pointer, size, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    inside = offsets < size
    tl.store(pointer + offsets, tl.load(pointer + offsets, mask=inside) + 1, mask=inside)
