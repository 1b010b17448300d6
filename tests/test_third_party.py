"""Kernels of liger-kernel, fla-core and flag-gems, which are optional: pip install 'atrex[third-party]'.

Without a package its tests are skipped. On a CPU only fla's kernels run, in the interpreter.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from atrex.gates import GATE_NAMES
from atrex.problem import load_problem
from atrex.records import Device, Judgement, Status, Verdict

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
third_party: Any = importlib.import_module("third_party")

WRAPPERS = third_party.wrappers()

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def named(name: str) -> Any:
    return next(wrapper for wrapper in WRAPPERS if wrapper.name == name)


def require_acceptance(wrapper: Any, device: Device, cases: int | None = None) -> None:
    """Rejected at a screening for known defects only. Skips where the package is not installed."""
    if not third_party.installed(wrapper.package):
        pytest.skip(f"{third_party.PACKAGES[wrapper.package]} is not installed")
    judgement, _ = third_party.judge(wrapper, device, "screen", cases)
    assert judgement.verdicts
    assert [(v.gate, v.reason) for v in third_party.unexplained(wrapper, judgement)] == []


# -- the wrappers ----------------------------------------------------------------------------------------


def test_every_package_has_wrappers() -> None:
    assert {wrapper.package for wrapper in WRAPPERS} == set(third_party.PACKAGES)


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: wrapper.name)
def test_a_wrapper_only_calls(wrapper: Any) -> None:
    """It imports its package and defines no kernel of its own."""
    source = wrapper.path.read_text(encoding="utf-8")
    assert f"from {wrapper.package}." in source
    assert "triton.jit" not in source
    assert "tl." not in source


@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: wrapper.name)
def test_a_domain_holds_production_cases_and_odd_shapes(wrapper: Any) -> None:
    """What a wrapper leaves out is no reason to accept it for what is left."""
    problem, narrowed = load_problem(wrapper.operator), wrapper.narrowed()
    cases = wrapper.cases()
    assert len(cases) == len(third_party.load_workload(operators=[wrapper.operator]).cases(wrapper.operator))
    if problem.odd():
        assert 4 <= len(narrowed.odd()) <= len(problem.odd())
    for shape in narrowed.odd():
        assert wrapper.holds(problem, shape)


def test_a_narrowed_problem_is_the_operators_own_elsewhere() -> None:
    problem, narrowed = load_problem("rms_norm"), named("rms_norm/fla_layernorm").narrowed()
    assert narrowed.spec.dims["hidden_size"].max == 32768
    assert problem.spec.dims["hidden_size"].max == 65536
    assert narrowed.spec.dims["token_count"] == problem.spec.dims["token_count"]
    assert narrowed.spec.contract == problem.spec.contract
    assert narrowed.probes == problem.probes


def test_a_fixed_argument_is_not_varied() -> None:
    """Neither by the gate sensitivity nor by a relation of the contract that scales it."""
    problem, narrowed = load_problem("moe_sum_reduce"), named("moe_sum_reduce/flag_gems_moe_sum").narrowed()
    factor = narrowed.spec.init["routed_scaling_factor"]
    assert (factor.min, factor.max, factor.choices, factor.default) == (None, None, (), 1.0)
    dropped = [r for r in problem.contract.relations if r not in narrowed.contract.relations]
    assert [r.init for r in dropped] == [{"routed_scaling_factor": 1}]


def test_a_known_defect_explains_its_own_gate_only() -> None:
    wrapper = named("causal_conv1d/fla_causal_conv1d")
    assert set(wrapper.defects) == {"specials"}
    verdicts = (
        Verdict(gate="specials", status=Status.FAIL, tolerance_free=True, reason="Inf became NaN"),
        Verdict(gate="layouts", status=Status.FAIL, tolerance_free=True, reason="other bits"),
        Verdict(gate="gradients", status=Status.UNSUPPORTED, tolerance_free=False, reason="none"),
    )
    judgement = Judgement(
        candidate="0" * 64,
        operator=wrapper.operator,
        device="cpu",
        level="screen",
        seed=1,
        required=("specials", "layouts"),
        may_be_unsupported=("gradients",),
        verdicts=verdicts,
        seconds=0.0,
    )
    assert [verdict.gate for verdict in third_party.rejections(judgement)] == ["specials", "layouts"]
    assert [verdict.gate for verdict in third_party.unexplained(wrapper, judgement)] == ["layouts"]
    assert set(wrapper.defects) <= set(GATE_NAMES)


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("rms_norm/fla_x.py", '"""No sentence"""', "in a sentence"),
        ("rms_norm/elsewhere_x.py", '"""A sentence."""', "<operator>/<package>"),
        ("no_operator/fla_x.py", '"""A sentence."""', "<operator>/<package>"),
    ],
)
def test_a_bad_wrapper_is_named(tmp_path: Path, path: str, text: str, complaint: str) -> None:
    file = tmp_path / path
    file.parent.mkdir()
    file.write_text(text)
    with pytest.raises(ValueError, match=complaint):
        third_party.read_wrapper(file)


# -- the kernels -----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "wrapper", [w for w in WRAPPERS if w.runs_on("cpu")], ids=lambda wrapper: wrapper.name
)
def test_a_screening_accepts(wrapper: Any) -> None:
    require_acceptance(wrapper, "cpu", 2)


@needs_cuda
@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.parametrize("wrapper", WRAPPERS, ids=lambda wrapper: wrapper.name)
def test_a_screening_accepts_on_cuda(wrapper: Any) -> None:
    require_acceptance(wrapper, "cuda")
