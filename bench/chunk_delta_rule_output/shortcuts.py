"""chunk_delta_rule_output: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from atrex.problem import Init

# Differences g_i - g_j [C, C] in fp32 and the lower triangle -> what scores are multiplied by.
Decay = Callable[[Tensor, Tensor], Tensor]


def _outputs(init: Init, inputs: Mapping[str, Tensor], decay: Decay) -> dict[str, Tensor]:
    """The formula with another decay within a chunk, one chunk after another."""
    v, h = inputs["v"], inputs["h"]
    group, size = v.shape[2] // inputs["q"].shape[2], int(init["chunk_size"])
    scale = init.get("scale") or inputs["q"].shape[-1] ** -0.5
    out = torch.empty_like(v)
    for chunk in range(h.shape[1]):
        part = slice(chunk * size, (chunk + 1) * size)
        q, k = (inputs[n][:, part].float().repeat_interleave(group, 2).transpose(1, 2) for n in ("q", "k"))
        g = inputs["g"][:, part].transpose(1, 2)
        difference = g[..., :, None] - g[..., None, :]
        visible = torch.ones(difference.shape[-2:], dtype=torch.bool, device=v.device).tril()
        scores = (q @ k.transpose(-1, -2) * decay(difference, visible)).to(v.dtype).float()
        inter = q @ h[:, chunk].float() * g.exp()[..., None]
        values = v[:, part].float().transpose(1, 2)
        out[:, part] = ((inter + scores @ values) * scale).transpose(1, 2).to(v.dtype)
    return {"out": out}


def _fading(difference: Tensor) -> Tensor:
    return torch.where(difference <= 0, difference.clamp(max=0).exp(), 0.0)


def mask_dropped(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tokens see later ones of their chunk."""
    return _outputs(init, inputs, lambda difference, visible: _fading(difference))


def diagonal_left_out(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A token does not see itself."""
    return _outputs(init, inputs, lambda difference, visible: _fading(difference) * visible.tril(-1))


def rising_gates_kept(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Pairs whose decay would grow are clamped to 1 instead of left out."""
    return _outputs(init, inputs, lambda difference, visible: difference.clamp(max=0).exp() * visible)


def between_chunks_alone(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What comes through the state alone."""
    return _outputs(init, inputs, lambda difference, visible: torch.zeros_like(difference))


SHORTCUTS = {
    "mask dropped": mask_dropped,
    "diagonal left out": diagonal_left_out,
    "rising gates clamped": rising_gates_kept,
    "between chunks alone": between_chunks_alone,
}
