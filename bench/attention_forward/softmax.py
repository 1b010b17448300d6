"""The fp64 oracle of softmax attention over packed sequences, shared by the four attention operators.

Value. For a query q and its visible keys: p = softmax(q k^T / sqrt(D)), out = sum_j p_j v_j.

Terms (roundings of the fp32 accumulator). Summing p v over n keys errs by growth(n) u sum p|v|, and the sum
of p by as much. A logit errs by e <= growth(D) u A, where A = max_j sum_d |q_d k_jd| / sqrt(D), which is at
most ||q|| max_j ||k_j|| / sqrt(D) (Cauchy and Schwarz); through the exponential that moves the result by
|sum_j p_j e_j (v_j - out)| <= 2 e sum p|v|. The contract's growth is that of `longest` = max(D, n), so
terms = sum p|v| (1 + 2 A growth(D) / growth(longest)).

Slack (one rounding that operators.md does not name). P is rounded to the operand dtype before P V: tensor
cores take both operands narrow, and every production flash kernel feeds them so. Each p_j (relative to the
row's maximum, before it is normalised) becomes p_j (1 + d_j) with |d_j| <= u' = eps/2, half an ulp at 1:
2^-8 for bf16, 2^-11 for fp16. The worst case is u' sum p|v|. Over many keys that would hide anything, for
out shrinks like 1/sqrt(n) while sum p|v| does not: at 65536 keys it is four fifths of out. So, as the bound
of sums does, take the roundings as independent apart from a part common to all (equal logits round alike,
and dividing by the sum of the rounded p scales all alike): u' (|out| + 6 sqrt(sum p^2 v^2)) by Hoeffding's
inequality, and the worst case where that is smaller. Below the normal range (fp16: p under 2^-14 of the
row's largest) the rounding is half the smallest subnormal instead.

Overflow. Where q k^T before its scale, or P V before it is normalised, may leave fp32's range, it depends on
the order of operations whether a kernel gives a number or NaN, and all orders are right. There the value is
+Inf, which no order gives, so that neither numbers nor classes are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from atrex.problem import Expected

_CHUNK = 1 << 25  # scores at a time: 256 MiB of fp64, and three or four such temporaries
_LAMBDA = 6.0  # docs/gates.md
_FAR = 2.0**125  # near the end of fp32's range
_ROUNDINGS = 16  # the contract's rounding_steps


def _growth(terms: int) -> float:
    return min(terms, _LAMBDA * math.sqrt(terms)) + _ROUNDINGS


def packed_attention(
    q: Tensor, k: Tensor, v: Tensor, q_lens: Sequence[int], k_lens: Sequence[int], causal: bool = False
) -> Expected:
    """q [Tq, H, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv], packed by sequence; the result is [Tq, H, Dv] in fp64.

    With `causal`, query i of a sequence of nq queries and nk keys sees the keys up to nk - nq + i. Queries of
    a sequence without keys give zeros.
    """
    shape = (*q.shape[:2], v.shape[2])
    value, terms, slack = (torch.zeros(shape, dtype=torch.float64, device=q.device) for _ in range(3))
    ratio = min(1.0, _growth(q.shape[2]) / _growth(max(k_lens, default=1)))
    q_starts, k_starts = ([0, *accumulate(lens)] for lens in (q_lens, k_lens))
    for queries, keys in sorted(set(zip(q_lens, k_lens, strict=True))):
        if not queries or not keys:
            continue
        members = [i for i, pair in enumerate(zip(q_lens, k_lens, strict=True)) if pair == (queries, keys)]
        step = max(1, _CHUNK // (keys * max(q.shape[1] * queries, 2 * k.shape[1] * k.shape[2])))
        for at in range(0, len(members), step):
            some = members[at : at + step]
            rows, cols = _rows(q_starts, some, queries, q), _rows(k_starts, some, keys, q)
            part = _attend(q[rows], k[cols], v[cols], causal, ratio)
            value[rows], terms[rows], slack[rows] = part.value, part.terms, _given(part.slack)
    return Expected(value, terms, slack)


def _given(slack: Tensor | None) -> Tensor:
    assert slack is not None
    return slack


def _rows(starts: Sequence[int], members: Sequence[int], length: int, like: Tensor) -> Tensor:
    """Rows of some sequences of one length: [members, length]."""
    first = torch.tensor([starts[i] for i in members], device=like.device)
    return first[:, None] + torch.arange(length, device=like.device)


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, ratio: float) -> Expected:
    """q [G, n, H, D], k [G, m, Hkv, D], v [G, m, Hkv, Dv]: a few heads, and a few queries, at a time."""
    (batch, queries, heads, size), (keys, kv_heads) = q.shape, k.shape[1:3]
    group = heads // kv_heads
    shape = (batch, queries, heads, v.shape[3])
    value, terms, slack = (torch.empty(shape, dtype=torch.float64, device=q.device) for _ in range(3))
    head_step = max(1, min(kv_heads, _CHUNK // (batch * keys * max(group * queries, 2 * size))))
    query_step = max(1, min(queries, _CHUNK // (batch * keys * group))) if head_step == 1 else queries
    for head in range(0, kv_heads, head_step):
        few = slice(head * group, (head + head_step) * group)
        kh, vh = (t[:, :, head : head + head_step].transpose(1, 2).double() for t in (k, v))
        for start in range(0, queries, query_step):
            span = slice(start, start + query_step)
            rows = q[:, span, few].double().unflatten(2, (-1, group)).permute(0, 2, 3, 1, 4)
            first = keys - queries + start if causal else None
            found = _block(rows, kh, vh, first, ratio, q.dtype)
            for whole, part in zip((value, terms, slack), found, strict=True):
                whole[:, span, few] = part.permute(0, 3, 1, 2, 4).flatten(2, 3)
    return Expected(value, terms, slack)


def _block(
    q: Tensor, k: Tensor, v: Tensor, first: int | None, ratio: float, narrow: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Value, terms and slack of q [G, Hkv, g, c, D] over k, v [G, Hkv, m, D] in fp64.

    `first` is the last key that query 0 sees; None where there is no mask.
    """
    inner, scale = q.shape[2:4], q.shape[-1] ** -0.5
    if first is not None:
        k, v = (t[:, :, : first + inner[1]] for t in (k, v))  # no query of this block sees further
    p = (q.flatten(2, 3) @ k.mT).mul_(scale)
    if first is not None:
        place = torch.arange(first, first + inner[1], device=q.device)
        hidden = torch.arange(k.shape[2], device=q.device) > place[:, None]
        p.unflatten(2, inner).masked_fill_(hidden, -torch.inf)
    p.sub_(p.amax(-1, keepdim=True)).exp_()
    total = p.sum(-1, keepdim=True)
    p.div_(total)
    value, magnitude = p @ v, p @ v.abs()
    spread = (p.square_() @ v.square()).sqrt_()
    # Keys that are not finite have weight 0 or make the value NaN: they have no part in a bound.
    longest = k.norm(dim=-1).nan_to_num(0.0, 0.0, 0.0).amax(-1)[:, :, None, None]
    logit = q.flatten(2, 3).norm(dim=-1, keepdim=True).nan_to_num(0.0, 0.0, 0.0) * longest * scale
    info = torch.finfo(narrow)
    rounded = info.eps / 2 * torch.minimum(magnitude, value.abs() + _LAMBDA * spread)
    column = v.abs().sum(2, keepdim=True)
    below_normal = info.smallest_normal * info.eps / 2 / total * column
    # Not for judging: no order of operations makes an infinity of these.
    value.masked_fill_(((logit / scale >= _FAR) | (column >= _FAR)) & value.isfinite(), torch.inf)
    found = (value, magnitude * (1 + 2 * ratio * logit), rounded + below_normal)
    value, terms, slack = (t.unflatten(2, inner) for t in found)
    return value, terms, slack
