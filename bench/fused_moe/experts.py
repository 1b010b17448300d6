"""The fp64 mixture of experts that both fused-MoE operators are judged by, with its error terms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from atrex.problem import Expected

_ELEMENTS = 1 << 24  # of the widest temporary at a time: 128 MiB of fp64, and about a dozen of them live
_SILU_SLOPE = 1.1  # the largest |d silu / dg| is 1.0998
Weights = Callable[[int], Tensor]  # expert -> its matrix in fp64


def expected(
    hidden: Tensor, w1: Weights, w2: Weights, weights: Tensor, ids: Tensor, experts: int
) -> Expected:
    """out[t] = sum over experts e of C[t, e] * (silu(x gate_e^T) * (x up_e^T)) w2_e^T, with C[t, e] = the sum
    of token t's weights for expert e.

    hidden [T, H] (a dtype that fp64 holds), w1(e) [2I, H], w2(e) [H, I], weights and ids [T, k].

    Errors, for an accumulator with growth g (see atrex.gates.comparators) and s = silu(gate) * up:

    * g (|x| |w|^T) on gate and on up, hence on s at most
      d = g [1.1 (|x| |gate_w|^T) |up| + |silu(gate)| (|x| |up_w|^T) + |s| (1 + max(0, -gate))];
      the last term is the arithmetic of silu itself, whose exponential multiplies an error of its argument.
    * The kernel may round s to bf16 for the second matrix product. Its own s' differs from s by at most d,
      and with b = bf16(s), |bf16(s') - s| <= |bf16(s') - s'| + d <= |b - s'| + d <= |b - s| + 2 d. So
      `slack` is |C| |b - s| |w2|^T, below 2^-9 |C| |s| |w2|^T, and d counts twice. The same holds for any
      finer rounding, TF32 included.
    * g |s| |w2|^T for the second sum and as much for the sum over experts: every level of summation is at
      most `longest` long.
    """
    tokens, width = hidden.shape
    blank = torch.zeros((tokens, width), dtype=torch.float64, device=hidden.device)
    value, terms, slack = blank, blank.clone(), blank.clone()
    choices = ids.long()
    share = torch.zeros((tokens, experts), dtype=torch.float64, device=hidden.device)
    size = share.clone()
    share.scatter_add_(1, choices, weights.double())
    size.scatter_add_(1, choices, weights.double().abs())
    # One expert at a time, to hold one expert's weights in fp64 and no more.
    for expert in choices.unique().tolist():
        first, second = w1(expert), w2(expert)
        every = (choices == expert).any(1).nonzero().squeeze(1)
        for rows in every.split(max(1, _ELEMENTS // max(first.shape))):
            x = hidden[rows].double()
            gate, up = (x @ first.T).chunk(2, -1)
            spread_gate, spread_up = (x.abs() @ first.abs().T).chunk(2, -1)
            active = gate * torch.sigmoid(gate)
            middle = active * up
            error = _SILU_SLOPE * spread_gate * up.abs() + active.abs() * spread_up
            error += middle.abs() * (1 + torch.relu(-gate))
            rounding = (middle.to(torch.bfloat16).double() - middle).abs()
            own, magnitude = share[rows, expert, None], size[rows, expert, None]
            value[rows] += own * (middle @ second.T)
            terms[rows] += magnitude * ((2 * error + 2 * middle.abs()) @ second.abs().T)
            slack[rows] += magnitude * (rounding @ second.abs().T)
    return Expected(value, terms, slack)
