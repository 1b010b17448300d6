"""attention_forward: wrong kernels that save work (docs/problems.md); other attentions share their parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from atrex.problem import Init

_LOGITS = 1 << 26  # at a time: 256 MiB
_BLOCK = 16  # keys between two rescalings
# Logits [H, n, m] in fp32, -inf where masked -> what each value is multiplied by; rows are then normalised.
Weigh = Callable[[Tensor], Tensor]
Outputs = dict[str, Tensor]
Shortcut = Callable[[Init, Mapping[str, Tensor]], Outputs]


def attend(
    q: Tensor, k: Tensor, v: Tensor, weigh: Weigh, *, causal: bool = False, scale: float | None = None
) -> Tensor:
    """Attention of q [n, Hq, D] over k, v [m, Hkv, D] with weights of some kind, some queries at a time."""
    count, heads, size = q.shape
    keys, kv_heads = k.shape[:2]
    if not keys:
        return torch.zeros((count, heads, v.shape[-1]), dtype=q.dtype, device=q.device)
    wide_k = k.float().repeat_interleave(heads // kv_heads, 1).permute(1, 2, 0)
    wide_v = v.float().repeat_interleave(heads // kv_heads, 1).transpose(0, 1)
    place = torch.arange(keys, device=q.device)
    parts = []
    for start in range(0, count, step := max(1, _LOGITS // (heads * keys))):
        some = q[start : start + step].float().transpose(0, 1)
        logits = some @ wide_k * (size**-0.5 if scale is None else scale)
        if causal:
            last = torch.arange(start, start + some.shape[1], device=q.device) + keys - count
            logits = logits.masked_fill(place > last[:, None], -torch.inf)
        weights = weigh(logits)
        out = weights @ wide_v / weights.sum(-1, keepdim=True)
        parts.append(out.transpose(0, 1).to(q.dtype))
    return torch.cat(parts) if parts else torch.empty((0, heads, v.shape[-1]), dtype=q.dtype, device=q.device)


def uniform(logits: Tensor) -> Tensor:
    """The mean of the visible values."""
    return torch.where(logits == -torch.inf, 0.0, 1.0)


def not_rescaled(logits: Tensor) -> Tensor:
    """Online softmax that forgets to rescale what it has summed when the running maximum moves."""
    pad = -logits.shape[-1] % _BLOCK
    blocks = torch.nn.functional.pad(logits, (0, pad), value=-torch.inf).unflatten(-1, (-1, _BLOCK))
    running = blocks.amax(-1).cummax(-1).values
    return torch.exp(blocks - running[..., None]).flatten(-2)[..., : logits.shape[-1]]


def first_maximum(logits: Tensor) -> Tensor:
    """The maximum of the first keys for all: right until an exponential overflows."""
    return torch.exp(logits - logits[..., :_BLOCK].amax(-1, keepdim=True))


def hardest(logits: Tensor) -> Tensor:
    """The value of the best key alone."""
    return (logits == logits.amax(-1, keepdim=True)).float()


def softmax(logits: Tensor) -> Tensor:
    """The right weights."""
    return torch.softmax(logits, -1)


def wrongly_weighed(attention: Callable[[Init, Mapping[str, Tensor], Weigh], Outputs]) -> dict[str, Shortcut]:
    """Shortcuts that every attention has: `attention` with other weights than softmax's."""

    def by(weigh: Weigh) -> Shortcut:
        return lambda init, inputs: attention(init, inputs, weigh)

    return {
        "mean of v": by(uniform),
        "softmax not rescaled": by(not_rescaled),
        "running maximum never updated": by(first_maximum),
    }


def _packed(init: Init, inputs: Mapping[str, Tensor], weigh: Weigh, *, scale: float | None = None) -> Outputs:
    lens = inputs["cu_seqlens_q"].diff().tolist()
    rows = zip(*(inputs[name].split(lens) for name in ("q", "k", "v")), strict=True)
    return {"out": torch.cat([attend(q, k, v, weigh, scale=scale) for q, k, v in rows])}


def logits_not_scaled(init: Init, inputs: Mapping[str, Tensor]) -> Outputs:
    """Without 1 / sqrt(D)."""
    return _packed(init, inputs, softmax, scale=1.0)


SHORTCUTS = {**wrongly_weighed(_packed), "logits not scaled": logits_not_scaled}
