"""Bugs where two conditions meet: gates that look at one of them miss these, draws of all at once do not."""

from __future__ import annotations

import dataclasses

import pytest

from agent.proposers.baselines import eager
from atrex.candidate import Candidate
from atrex.gates import specials
from atrex.gates.context import GateContext, Rejection
from atrex.gates.crossed import crossed
from atrex.gates.shapes import off_grid
from atrex.judge import Engine
from atrex.problem import load_problem
from atrex.verify import gate_context
from traces.workload import load_workload

SEEDS = range(5)
NORM = """
import torch
from torch import nn

KEPT = {{}}


class Model(nn.Module):
    def __init__(self, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        T, H = x.shape
        eps = self.eps
        {bug}
        scale = torch.rsqrt(x.float().square().mean(-1, keepdim=True) + eps)
        result = (x.float() * scale * weight.float()).to(x.dtype)
        {end}
        return result
"""
BUGS = {
    "a path for one row ignores eps": ("if T == 1: eps = 1e-6", ""),
    "a path for narrow rows ignores eps": ("if H < 128: eps = 1e-6", ""),
    "a path for narrow rows reads them as packed": (
        "if H < 128 and x.stride(-1) == 1: x = x.as_strided((T, H), (H, 1), x.storage_offset())",
        "",
    ),
    "a path for one row works in its input": ("", "if T == 1: x.copy_(result)"),
    "a path for narrow rows loses specials": ("", "if H < 128: result = torch.nan_to_num(result)"),
    "a path for one row hands out one buffer": (
        "",
        "if T == 1: result = KEPT.setdefault(H, torch.empty_like(result)).copy_(result)",
    ),
}


def looked(engine: Engine, kernel: Candidate, seed: int, draws: int = 0) -> GateContext:
    """The draws of one judgement, at the operator's odd shapes. Raises Rejection."""
    cases = load_workload(operators=[kernel.operator]).cases(kernel.operator)
    with engine.session(kernel) as session:
        ctx = gate_context("shapes", session, cases, "full", seed, "", lambda: session)
        if draws:
            ctx.plan = dataclasses.replace(ctx.plan, crossed=draws)
        crossed(ctx, [*ctx.representatives(), *off_grid(ctx)])
        return ctx


def rejections(engine: Engine, kernel: Candidate) -> list[str]:
    """Why each of several judgements rejects it."""
    reasons = list[str]()
    for seed in SEEDS:
        try:
            looked(engine, kernel, seed)
        except Rejection as rejection:
            reasons.append(rejection.reason)
    return reasons


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.replace(" ", "_"))
def test_a_bug_at_a_crossing_is_found(engine: Engine, bug: str) -> None:
    """Whatever the seed is, but for one of them at most: the next judgement draws again."""
    kernel = Candidate("rms_norm", "torch", NORM.format(bug=BUGS[bug][0], end=BUGS[bug][1]))
    assert len(rejections(engine, kernel)) >= len(SEEDS) - 1


def test_the_kernel_without_one_is_accepted(engine: Engine) -> None:
    right = Candidate("rms_norm", "torch", NORM.format(bug="", end=""))
    assert rejections(engine, right) == []
    assert looked(engine, right, 1).metrics["crossed"] == 100


@pytest.mark.parametrize(
    "operator",
    ["fused_add_rms_norm", "fused_qk_rmsnorm", "gated_rms_norm", "moe_topk_gating_softmax",
     "reshape_and_cache", "topk_filter", "per_token_group_quant_fp8", "mrope"],
)  # fmt: skip
def test_eager_pytorch_is_accepted(engine: Engine, operator: str) -> None:
    """Where constructor arguments, dtypes, states and optional inputs are drawn, too."""
    assert looked(engine, eager(load_problem(operator).spec), 7, 30).metrics["crossed"] == 30


def test_the_same_seed_draws_the_same(engine: Engine) -> None:
    name = "a path for narrow rows ignores eps"
    kernel = Candidate("rms_norm", "torch", NORM.format(bug=BUGS[name][0], end=""))
    with pytest.raises(Rejection) as first:
        looked(engine, kernel, 1)
    with pytest.raises(Rejection) as second:
        looked(engine, kernel, 1)
    assert first.value.reason == second.value.reason
    assert first.value.witness
    assert first.value.witness == second.value.witness


def test_a_special_lost_off_the_production_grid_alone_is_seen(engine: Engine) -> None:
    """Production's rows are even: `specials` looks at one odd shape beside the buckets."""
    lost = "if H % 2: result = torch.nan_to_num(result)"
    kernel = Candidate("rms_norm", "torch", NORM.format(bug="", end=lost))
    cases = load_workload(operators=["rms_norm"]).cases("rms_norm")
    with engine.session(kernel) as session:
        ctx = gate_context("specials", session, cases, "full", 1, "", lambda: session)
        assert not any(shape.dims["hidden_size"] % 2 for shape in ctx.representatives())
        with pytest.raises(Rejection, match="special value lost"):
            specials.run(ctx)
