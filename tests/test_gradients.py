"""The gate `gradients`: honest backwards pass, and each kind of wrong one is seen to fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from agent.proposers.baselines import eager
from atrex.candidate import Candidate
from atrex.gradient import eager_gradient, expected_gradient, upstream
from atrex.inputs import draw_values
from atrex.judge import Engine
from atrex.problem import load_problem, operators
from atrex.protocol import InputSpec
from atrex.records import Shape, Status, Verdict
from atrex.verify import Verifier
from traces.workload import load_workload

CPU = torch.device("cpu")
CASES = load_workload(operators=["rms_norm"]).cases("rms_norm")[:1]
OURS = [name for name in operators() if load_problem(name).contract.gradients]
BACKWARD = """
import torch


class RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale * weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, above):
        x, weight, scale = ctx.saved_tensors
        normed, pulled = x.float() * scale, above.float() * weight.float()
        dx = (pulled - normed * (pulled * normed).mean(-1, keepdim=True)) * scale
        dweight = (above.float() * normed).sum(0)
        return dx.to(x.dtype), dweight.to(weight.dtype), None


class Model(torch.nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.eps = eps

    def forward(self, x, weight):
        return RMSNorm.apply(x, weight, self.eps)
"""
SAVED, DX, DWEIGHT = "ctx.saved_tensors", "dx.to(x.dtype)", "(above.float() * normed).sum(0)"
WRONG = {
    "drops the mean's term": ("- normed * (pulled * normed).mean(-1, keepdim=True)", ""),
    "weight summed in bf16": (DWEIGHT, "sum((above.float() * normed).bfloat16())"),
    "weight before the scale": (DWEIGHT, "(above.float() * x.float()).sum(0)"),
    "one row forgotten": (DWEIGHT, "(above.float() * normed)[:-1].sum(0)"),
    "ignores the weight": ("above.float() * weight.float()", "above.float()"),
    "remembers what came first": (SAVED, f"{SAVED}; above = FIRST.setdefault(above.shape, above)"),
    "adds a constant": ("(pulled -", "(2.0**-6 + pulled -"),
    "gives other bits each time": (DX, "(dx * (1 + 2.0**-9 * torch.rand(1))).to(x.dtype)"),
    "gives none for the weight": ("dweight.to(weight.dtype), None", "None, None"),
}


@pytest.fixture(scope="module")
def verifier(engine: Engine) -> Iterator[Verifier]:
    with Verifier(engine) as verifier:
        yield verifier


def verdict(verifier: Verifier, source: str, seed: int | None = None) -> Verdict:
    candidate = Candidate("rms_norm", "torch", f"FIRST = {{}}\n{source}")
    judgement = verifier.judge(candidate, CASES, level="screen", gates=("gradients",), seed=seed)
    verifier.engine.forget(candidate)
    return judgement.verdicts[0]


def test_an_honest_backward_passes(verifier: Verifier) -> None:
    found = verdict(verifier, BACKWARD)
    assert found.status is Status.PASS, found.reason
    assert found.metrics["worst_error_over_bound"]


def test_the_sign_of_a_zero_that_a_difference_leaves_is_nobody_s(verifier: Verifier) -> None:
    """With this seed a row of one has the gradient 0 in fp64 and -0 in fp32."""
    found = verdict(verifier, BACKWARD, 80416699359731)
    assert found.status is Status.PASS, found.reason


@pytest.mark.parametrize(
    "operator",
    [o if o in ("rms_norm", "linear_sigmoid_mul") else pytest.param(o, marks=pytest.mark.slow) for o in OURS],
)
def test_eager_pytorch_passes(verifier: Verifier, operator: str) -> None:
    """At the widths of production, where torch's own backward on a CPU has been seen to be far off."""
    candidate = eager(load_problem(operator).spec)
    cases = load_workload(operators=[operator]).cases(operator)
    judgement = verifier.judge(candidate, cases, level="screen", gates=("gradients",))
    verifier.engine.forget(candidate)
    found = judgement.verdicts[0]
    assert found.status is Status.PASS, (judgement.seed, found.reason)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_backward_fails(verifier: Verifier, name: str) -> None:
    right, wrong = WRONG[name]
    assert BACKWARD.count(right) == 1
    found = verdict(verifier, BACKWARD.replace(right, wrong))
    assert found.status is Status.FAIL, found.metrics
    assert found.witness is not None
    assert "gradient" in found.reason


def test_a_kernel_without_a_backward_is_unsupported(verifier: Verifier) -> None:
    forward_only = BACKWARD.replace(
        "    def forward(self, x", "    @torch.no_grad()\n    def forward(self, x"
    )
    found = verdict(verifier, forward_only)
    assert (found.status, found.reason) == (Status.UNSUPPORTED, "the outputs have no gradient")


@pytest.mark.parametrize("operator", OURS)
def test_the_formula_is_the_operator(operator: str) -> None:
    """On the same inputs it gives the oracle's values; what is differentiated is the operator."""
    problem = load_problem(operator)
    for shape in [one for one in problem.odd() if 0 < problem.elements(one) <= 1 << 12][:4] or [
        _tiny(operator)
    ]:
        inputs = draw_values(problem, InputSpec(shape=shape, seed=3), CPU)
        wide = {name: value.double() for name, value in inputs.items()}
        for name, value in problem.smooth(shape, wide).items():
            expected = problem.oracle(shape, inputs)[name].value
            assert torch.allclose(value.double(), expected.double(), rtol=2.0**-8, atol=1e-9), name


def _tiny(operator: str) -> Shape:
    problem = load_problem(operator)
    shape = problem.shape(problem.small(load_workload(operators=[operator]).cases(operator)[0]))
    return problem.resize(shape, **{str(problem.rows): 3})


@pytest.mark.parametrize("operator", OURS)
def test_eager_autograd_is_near_the_oracle(operator: str) -> None:
    """Within a hundredth of the result; the allowance is at most five times two roundings to bf16."""
    problem, shape = load_problem(operator), _tiny(operator)
    inputs = draw_values(problem, InputSpec(shape=shape, seed=3), CPU)
    above = upstream(problem, shape, 5, CPU)
    for name in problem.contract.gradients:
        expected = expected_gradient(problem, shape, inputs, above, name)
        error = eager_gradient(problem, shape, inputs, above, name).double() - expected.value
        assert float(error.norm()) <= 0.01 * float(expected.value.norm()), name
        assert expected.slack is not None
        assert float(expected.slack.norm()) <= 5 * 2**0.5 * 2**-8 * float(expected.value.norm())
