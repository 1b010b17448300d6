"""gated_delta_rule_update: wrong kernels that save work (docs/problems.md)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Init
from bench.gated_delta_rule_update.reference import reference


def state_frozen(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state passed through: every token reads the initial one, nothing is written."""
    nothing = {"b": torch.full_like(inputs["b"], -1e4), "A_log": torch.full_like(inputs["A_log"], -1e4)}
    return reference(init, {**inputs, **nothing})


def no_decay(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The state never fades."""
    return reference(init, {**inputs, "A_log": torch.full_like(inputs["A_log"], -1e4)})


def full_steps(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """beta is 1."""
    return reference(init, {**inputs, "b": torch.full_like(inputs["b"], 1e4)})


def not_normalised(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """q and k as they come, whatever is asked."""
    return reference({**init, "use_qk_l2norm": False}, inputs)


def no_delta(init: Init, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Plain gated linear attention: what the state already says of a key is not taken off its value."""
    v, states = inputs["v"].float(), inputs["initial_state"].clone()
    group, rows = v.shape[2] // inputs["q"].shape[2], inputs["initial_state_indices"].long()
    q, k = (inputs[name].float().repeat_interleave(group, 2) for name in ("q", "k"))
    if init["use_qk_l2norm"]:
        q, k = (x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6) for x in (q, k))
    q = q * (q.shape[-1] ** -0.5 if init["scale"] is None else init["scale"])
    raised = inputs["a"].float() + inputs["dt_bias"].float()
    step = functional.softplus(raised, init["softplus_beta"], init["softplus_threshold"])
    fade, share = (-inputs["A_log"].exp() * step).exp(), torch.sigmoid(inputs["b"].float())
    state, out = states[rows], torch.empty_like(inputs["v"])
    for t in range(v.shape[1]):
        added = k[:, t, :, :, None] * (v[:, t] * share[:, t, :, None])[:, :, None]
        state = state * fade[:, t, :, None, None] + added
        out[:, t] = (q[:, t, :, None] @ state)[:, :, 0].to(out.dtype)
    states[rows] = state
    return {"out": out, "final_state": states}


SHORTCUTS = {
    "state passed through": state_frozen,
    "decay left out": no_decay,
    "beta taken as 1": full_steps,
    "q and k not normalised": not_normalised,
    "delta term left out": no_delta,
}
