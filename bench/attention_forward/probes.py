"""Directed queries, keys and values of packed sequences, shared by the attention operators.

A pattern gives q [Tq, H, D], k and v [Tk, Hkv, D]; each operator lays them out as its inputs want them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atrex.problem import Draw

Rows = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Packed:
    """Where each query and each key of packed sequences is."""

    heads: int
    kv_heads: int
    size: int
    dtype: torch.dtype
    q_seq: Tensor  # [Tq] the sequence of a query
    q_place: Tensor  # [Tq] the last key of its sequence that a causal query sees
    k_seq: Tensor  # [Tk]
    k_place: Tensor  # [Tk] the index of a key in its sequence
    k_starts: Tensor  # [S]
    k_lens: Tensor  # [S]

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    def q_shape(self) -> tuple[int, int, int]:
        """[Tq, H, D]."""
        return self.q_seq.numel(), self.heads, self.size

    def k_shape(self) -> tuple[int, int, int]:
        """[Tk, Hkv, D]."""
        return self.k_seq.numel(), self.kv_heads, self.size


Pattern = Callable[[Draw, Packed], Rows]


def pack(
    draw: Draw,
    q_lens: Sequence[int] | Tensor,
    k_lens: Sequence[int] | Tensor,
    heads: tuple[int, int, int],
    dtype: torch.dtype,
) -> Packed:
    """The places of sequences of these lengths; `heads` is query heads, key heads and the size of each."""
    queries, keys = (torch.as_tensor(n, dtype=torch.int64, device=draw.device) for n in (q_lens, k_lens))
    q_seq, k_seq = (torch.repeat_interleave(n) for n in (queries, keys))
    q_starts, k_starts = (n.cumsum(0) - n for n in (queries, keys))
    q_place = torch.arange(q_seq.numel(), device=draw.device) - (q_starts + queries - keys)[q_seq]
    k_place = torch.arange(k_seq.numel(), device=draw.device) - k_starts[k_seq]
    return Packed(*heads, dtype, q_seq, q_place, k_seq, k_place, k_starts, keys)


def prefix_sums(lens: Sequence[int], device: torch.device) -> Tensor:
    """0 and the running sums, int32."""
    return torch.tensor([0, *lens], dtype=torch.int64, device=device).cumsum(0).to(torch.int32)


def on_grid(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiples of 2^-6: scaled by small powers of two they stay exact, in fp16 too."""
    return ((value * 64).round() / 64).to(dtype)


def peaked(draw: Draw, at: Packed) -> Rows:
    """Logits ~ N(0, 3): a few keys outweigh the rest, and every input matters for every output."""
    q = on_grid(draw.normal(at.q_shape(), 3.0, torch.float32), at.dtype)
    k = on_grid(draw.normal(at.k_shape(), 1.0, torch.float32), at.dtype)
    return q, k, draw.normal(at.k_shape(), 1.0, at.dtype)


def _aligned(draw: Draw, at: Packed, target: Tensor) -> Rows:
    """Keys are random signs; query t is 16 / sqrt(D) times key target[t]: its logit is 16, others about 1."""
    k = torch.where(draw.uniform(at.k_shape()) < 0.5, -1.0, 1.0).to(at.dtype)
    v = draw.normal(at.k_shape(), 1.0, at.dtype)
    if not k.shape[0]:
        return draw.normal(at.q_shape(), 1.0, at.dtype), k, v
    chosen = k[target.clamp(0, k.shape[0] - 1)].repeat_interleave(at.group, 1)
    return chosen * (16 * at.size**-0.5), k, v


def own_key(draw: Draw, at: Packed) -> Rows:
    """The last key that a causal query sees takes the whole weight: a mask one too narrow loses it."""
    return _aligned(draw, at, at.k_starts[at.q_seq] + at.q_place)


def next_key(draw: Draw, at: Packed) -> Rows:
    """The key after the last visible one would take the whole weight: no mask or end may be one too wide."""
    return _aligned(draw, at, at.k_starts[at.q_seq] + at.q_place + 1)


def first_key(draw: Draw, at: Packed) -> Rows:
    """The first key of the query's own sequence takes the whole weight: an offset of one misses it."""
    return _aligned(draw, at, at.k_starts[at.q_seq])


def _offset(draw: Draw, at: Packed, logit: float) -> Rows:
    """All logits near one value, with differences of about 1 between them."""
    k = 1 + draw.normal(at.k_shape(), 1.0 / max(1.0, abs(logit)) * at.size**0.5, torch.float32)
    q = (1 + draw.normal(at.q_shape(), 0.02, torch.float32)) * (logit * at.size**-0.5)
    return q.to(at.dtype), k.to(at.dtype), draw.normal(at.k_shape(), 1.0, at.dtype)


def low_logits(draw: Draw, at: Packed) -> Rows:
    """Logits near -120: a padding key of logit 0, or a running maximum that starts at 0, leaves no weight."""
    return _offset(draw, at, -120.0)


def high_logits(draw: Draw, at: Packed) -> Rows:
    """Logits near 200: exp overflows without the maximum, and logits in a narrow dtype are off by halves."""
    return _offset(draw, at, 200.0)


def ascending(draw: Draw, at: Packed) -> Rows:
    """Logits that rise along each sequence by up to 60: every tile of keys raises the running maximum."""
    ramp = at.k_place / at.k_lens.clamp(min=2)[at.k_seq] * (at.k_lens[at.k_seq] / 240).clamp(max=1.0)
    k = ramp[:, None, None] + draw.normal(at.k_shape(), 0.1, torch.float32)
    q = (1 + draw.normal(at.q_shape(), 0.1, torch.float32)) * (60 * at.size**-0.5)
    return q.to(at.dtype), k.to(at.dtype), draw.normal(at.k_shape(), 1.0, at.dtype)


def late_peak(draw: Draw, at: Packed) -> Rows:
    """Logits near 200 in each sequence's last quarter, near 0 before: an old maximum overflows."""
    signs = torch.where(draw.uniform((at.kv_heads, at.size)) < 0.5, -1.0, 1.0)
    q = signs.repeat_interleave(at.group, 0)[None].expand(at.q_shape()).to(at.dtype).contiguous()
    late = (at.k_place >= (3 * at.k_lens[at.k_seq]) // 4).float()[:, None, None]
    k = draw.normal(at.k_shape(), 0.25, torch.float32) + late * signs * (200 / at.size**0.5)
    return q, k.to(at.dtype), draw.normal(at.k_shape(), 1.0, torch.float32).to(at.dtype)


def stagnation(draw: Draw, at: Packed) -> Rows:
    """Equal weights; a first value of 8 per key, next to which a narrow running sum loses the others."""
    v = 1 + draw.uniform(at.k_shape()) * 0.25
    large = (8 * at.k_lens[at.k_seq]).clamp(max=1 << 15).to(v.dtype)
    v = torch.where((at.k_place == 0)[:, None, None], large[:, None, None], v)
    k = torch.zeros(at.k_shape(), dtype=at.dtype, device=draw.device)
    return draw.normal(at.q_shape(), 1.0, at.dtype), k, v.to(at.dtype)


def cancellation(draw: Draw, at: Packed) -> Rows:
    """Equal weights; values near 1 in the first half of each sequence, near -1 in the second, or the reverse.

    What is left at the end are small differences, lost by a sum that was ever rounded to a narrow dtype.
    """
    sign = torch.where(2 * at.k_place < at.k_lens[at.k_seq], 1.0, -1.0)[:, None, None]
    column = torch.where(draw.uniform((at.kv_heads, at.size)) < 0.5, -1.0, 1.0)
    v = sign * column + draw.normal(at.k_shape(), 0.25, torch.float32)
    k = torch.zeros(at.k_shape(), dtype=at.dtype, device=draw.device)
    return draw.normal(at.q_shape(), 1.0, at.dtype), k, v.to(at.dtype)


def overflow(draw: Draw, at: Packed) -> Rows:
    """Equal weights; values from 2^12 to 2^13, whose sum over 16 keys is past the range of fp16."""
    v = 4096 * (1 + draw.uniform(at.k_shape()))
    k = torch.zeros(at.k_shape(), dtype=at.dtype, device=draw.device)
    return draw.normal(at.q_shape(), 1.0, at.dtype), k, v.to(at.dtype)


def cancelling_logits(draw: Draw, at: Packed) -> Rows:
    """Products q k whose sum over half of D is in the thousands and cancels to about sqrt(D)."""
    half = torch.where(torch.arange(at.size, device=draw.device) * 2 < at.size, 6.0, -6.0)
    q = half * (1 + draw.normal(at.q_shape(), 0.02, torch.float32))
    k = 6 + draw.normal(at.k_shape(), 0.15, torch.float32)
    return q.to(at.dtype), k.to(at.dtype), draw.normal(at.k_shape(), 1.0, at.dtype)


SENSITIVITY: dict[str, Pattern] = {
    "peaked": peaked,
    "own_key": own_key,
    "next_key": next_key,
    "first_key": first_key,
    "low_logits": low_logits,
    "ascending": ascending,
    "late_peak": late_peak,
}
ACCUMULATION: dict[str, Pattern] = {
    "high_logits": high_logits,
    "stagnation": stagnation,
    "cancellation": cancellation,
    "overflow": overflow,
    "cancelling_logits": cancelling_logits,
}
