"""mla_decode_attention: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from atrex.problem import Init
from bench.attention_forward.shortcuts import Outputs, Weigh, attend, softmax, wrongly_weighed


def _packed(init: Init, inputs: Mapping[str, Tensor], weigh: Weigh, scale: float | None = None) -> Outputs:
    """Attention of each query over its sequence's rows."""
    rows = inputs["kv_cache"].split(inputs["seq_lens"].tolist())
    rank = init["kv_lora_rank"]
    parts = [
        attend(q[None], kv, kv[..., :rank], weigh, scale=scale)
        for q, kv in zip(inputs["q"], rows, strict=True)
    ]
    return {"out": torch.cat(parts) if parts else inputs["q"][..., :rank].clone()}


def no_rope_part(init: Init, inputs: Mapping[str, Tensor]) -> Outputs:
    """Logits of the latent part alone."""
    q = inputs["q"].clone()
    q[..., init["kv_lora_rank"] :] = 0
    return _packed(init, {**inputs, "q": q}, softmax)


def scale_of_the_rank(init: Init, inputs: Mapping[str, Tensor]) -> Outputs:
    """1 / sqrt(kv_lora_rank) for the scale: 6 % off."""
    return _packed(init, inputs, softmax, scale=float(init["kv_lora_rank"]) ** -0.5)


SHORTCUTS = {
    **wrongly_weighed(_packed),
    "rope part of the logits left out": no_rope_part,
    "scale of the latent part": scale_of_the_rank,
}
