"""What the error of an honest fp32 kernel of the gated delta rule is bounded by.

All bounds are in units of u = 2^-24, per value column of a state, in the 2-norm over its K keys, and to first
order. With primes for what has decayed, one token takes S to S' = d S, u = (v - S'^T k) beta, S = S' + k u^T.

An error that S has passes on by d (I - beta k k^T), whose 2-norm is d r with r = max(1, |1 - beta |k|^2|), 1
for keys of length 1. So it is norms that pass on here: magnitudes would grow by 1 + beta |k|^2 a token.

New errors grow from sums of magnitudes. M = d M + |k| |u| is that of the terms which make up S, in whatever
order they are added: a token or a chunk at a time. With n = min(K, 6 sqrt(K)) + 8 for a sum of K products and
the steps beside it, and e of a normalised vector (half the error of its sum of squares, and 4 steps), a token
adds
    to u        E_u = beta ((n + e) |k| M' + n |v|) + (b_e + 2) |u|
    to S        |k| E_u + (e + 1) |k| |u| + M + d_e M'
where b_e and d_e are the relative errors of beta and d; and out = S^T q adds (n + e) |q| M to |q| times that
of S. All of it adds up, as if rounding errors had one sign.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from atrex.problem import Init, Precision

_U = 2.0**-24
_STEPS = 8
_BLOCK = 64  # tokens of which a chunked kernel adds up the gates, and that are looked at together here


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates in fp64, [T, B, Hv], and the errors that fp32 has in them, in units of u."""

    decay: Tensor  # log d
    decay_error: Tensor  # relative, of d
    beta: Tensor
    beta_error: Tensor  # relative

    @classmethod
    def of(cls, init: Init, inputs: Mapping[str, Tensor]) -> Gates:
        """log d = -exp(A_log) softplus(a + dt_bias) and beta = sigmoid(b).

        Each exponential multiplies its argument's error by the argument; softplus may be log(1 + exp(x)),
        whose 1 + exp(x) is off by a unit of 1. Where rounding may take x to the other side of the threshold,
        softplus may be either branch. A chunked kernel takes exp of differences of sums over a chunk.
        """
        a, dt_bias, b, log = (inputs[name].double() for name in ("a", "dt_bias", "b", "A_log"))
        slope, threshold = float(init["softplus_beta"]), float(init["softplus_threshold"])
        x = (a + dt_bias).movedim(0, 1)
        curved = functional.softplus(x * slope, 1.0, math.inf) / slope
        over = x * slope > threshold
        softplus = torch.where(over, x, curved)
        share = torch.sigmoid(x * slope)
        error = 3 * share * x.abs() + (3 * share + 1) / slope + 4 * softplus
        edge = 4 * _U * slope * (a.abs() + dt_bias.abs()).movedim(0, 1)
        near = ((x * slope - threshold).abs() <= edge) & (x * slope != threshold)
        error = error + torch.where(near, (curved - x).abs() / _U, 0.0)
        decay = -log.exp() * softplus
        error = log.exp() * error + decay.abs() * (log.abs() + 5) + 3
        error = error + 2 * _recent(decay.abs())
        b = b.movedim(0, 1)
        return cls(decay, error, torch.sigmoid(b), 4 + b.abs())


def _recent(gates: Tensor) -> Tensor:
    """Sum over the last 64 tokens."""
    total = gates.cumsum(0)
    before = functional.pad(total, (0, 0) * (total.ndim - 1) + (_BLOCK, 0))[: total.shape[0]]
    return total - before


def _sum(terms: int) -> float:
    return Precision("fp32", terms, _STEPS).units


def _norm_error(normal: int) -> float:
    """Relative error of a normalised vector of so many elements; of one that is not (0), none."""
    return Precision("fp32", normal, 0).units / 2 + 4 if normal else 0.0


def state_terms(
    gates: Gates, key: Tensor, v: Tensor, update: Tensor, first: Tensor, keys: int, normal: int
) -> tuple[Tensor, Tensor]:
    """M and the error of S, before the first token and after each: [1 + T, B, Hv, V].

    key [T, B, Hv, 1] is |k|, v and update [T, B, Hv, V], first [B, Hv, K, V].
    """
    decay, beta = gates.decay[..., None], gates.beta[..., None]
    size = update.abs()
    start = torch.linalg.vector_norm(first, dim=-2)
    reach = _decayed(decay, key * size, start)
    faded = decay.exp() * reach[:-1]
    n, e = _sum(keys), _norm_error(normal)
    new = beta * ((n + e) * key * faded + n * v.abs()) + (gates.beta_error[..., None] + 2) * size
    new = key * new + (e + 1) * key * size + reach[1:] + gates.decay_error[..., None] * faded
    turn = (1 - beta * key.square()).abs().clamp(min=1)
    return reach, _decayed(decay + turn.log(), new, torch.zeros_like(start))


def out_terms(query: Tensor, reach: Tensor, error: Tensor, keys: int, normal: int) -> Tensor:
    """The error of S^T q: query [T, B, Hv, 1] is |q|, reach and error [T, B, Hv, V] after each token."""
    return query * (error + (_sum(keys) + _norm_error(normal)) * reach)


def _decayed(decay: Tensor, new: Tensor, start: Tensor) -> Tensor:
    """x_t = exp(decay_t) x_(t-1) + new_t from x_0 = start, with x_0: nothing cancels, so blocks will do.

    decay [T, B, Hv, 1], new [T, B, Hv, V], start [B, Hv, V].
    """
    found = torch.empty((new.shape[0] + 1, *new.shape[1:]), dtype=new.dtype, device=new.device)
    found[0] = start
    for at in range(0, new.shape[0], _BLOCK):
        part = slice(at, at + _BLOCK)
        total = decay[part, ..., 0].movedim(0, -1).cumsum(-1)  # [B, Hv, C]
        gap = total[..., :, None] - total[..., None, :]
        below = torch.ones_like(gap, dtype=torch.bool).tril()
        weight = torch.where(below, gap, -torch.inf).exp()
        block = weight @ new[part].movedim(0, -2) + total.exp()[..., None] * found[at][..., None, :]
        found[at + 1 : at + 1 + block.shape[-2]] = block.movedim(-2, 0)
    return found
