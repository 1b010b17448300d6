import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def _mrope_rows(
    t_ptr, cos_ptr, sin_ptr, axis_ptr, tokens, stride_t, heads, head_size, half,
    NEOX: tl.constexpr, BLOCK_F: tl.constexpr,
):
    tok = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    f = tl.arange(0, BLOCK_F)
    ok = f < half
    axis = tl.load(axis_ptr + f, mask=ok, other=0)
    at = (axis.to(tl.int64) * tokens + tok) * half + f
    c = tl.load(cos_ptr + at, mask=ok, other=0.0)
    s = tl.load(sin_ptr + at, mask=ok, other=0.0)
    base = t_ptr + tok * stride_t + head * head_size
    if NEOX:
        first = base + f
        second = base + half + f
    else:
        first = base + 2 * f
        second = base + 2 * f + 1
    a = tl.load(first, mask=ok, other=0.0).to(tl.float32)
    b = tl.load(second, mask=ok, other=0.0).to(tl.float32)
    tl.store(first, (a * c - b * s).to(t_ptr.dtype.element_ty), mask=ok)
    tl.store(second, (b * c + a * s).to(t_ptr.dtype.element_ty), mask=ok)


@torch.library.custom_op("heldout_rope::rotate_", mutates_args=("t",))
def rotate_(
    t: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, axis: torch.Tensor, head_size: int, neox: bool
) -> None:
    tokens, width = t.shape
    half = cos.shape[-1]
    if tokens == 0 or half == 0:
        return
    heads = width // head_size
    _mrope_rows[(tokens, heads)](
        t, cos, sin, axis, tokens, t.stride(0), heads, head_size, half,
        NEOX=neox, BLOCK_F=triton.next_power_of_2(half), num_warps=1,
    )


@rotate_.register_fake
def _(t, cos, sin, axis, head_size, neox):
    torch._check(t.shape[1] % head_size == 0, lambda: "whole heads only")
    return None


def sections_to_axes(section, interleaved, half):
    """For every frequency, which of time, height and width it turns with."""
    axes = [0] * half
    if interleaved:
        for axis, offset in ((1, 1), (2, 2)):
            for i in range(offset, section[axis] * 3, 3):
                axes[i] = axis
        return axes
    at = 0
    for axis, length in enumerate(section):
        axes[at : at + length] = [axis] * length
        at += length
    return axes


class Model(nn.Module):
    def __init__(self, head_size, rotary_dim, mrope_section=(16, 24, 24), mrope_interleaved=False, is_neox_style=True):
        super().__init__()
        self.head_size = head_size
        self.neox = bool(is_neox_style)
        axes = sections_to_axes(list(mrope_section), mrope_interleaved, rotary_dim // 2)
        self.register_buffer("axes", torch.tensor(axes, dtype=torch.int32), persistent=False)

    @torch.no_grad()
    def forward(self, q, k, cos, sin):
        if self.axes.device != q.device:
            self.axes = self.axes.to(q.device)
        cos, sin = cos.contiguous(), sin.contiguous()
        result = {}
        for name, t in (("q", q), ("k", k)):
            turned = t.clone(memory_format=torch.contiguous_format)
            torch.ops.heldout_rope.rotate_(turned, cos, sin, self.axes, self.head_size, self.neox)
            result[name] = turned
        return result
