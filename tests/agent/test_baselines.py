"""The baselines compute the operator, and one compilation serves all token counts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from agent.proposers.baselines import compiled, eager
from atrex.candidate import Candidate
from atrex.problem import load_problem
from atrex.records import Shape

PROBLEM = load_problem("rms_norm")


def model(candidate: Candidate, folder: Path, **init: Any) -> Any:
    path = folder / f"{candidate.id[:12]}.py"
    path.write_text(candidate.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Model(**init)


def inputs(tokens: int, hidden: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(tokens)
    return {"x": torch.randn(tokens, hidden).bfloat16(), "weight": torch.randn(hidden).bfloat16()}


def test_eager_returns_the_references_tensor_and_takes_its_defaults(tmp_path: Path) -> None:
    given = inputs(5, 48)
    for init in ({}, {"eps": 0.25}):
        out = model(eager(PROBLEM.spec), tmp_path, **init)(**given)
        assert type(out) is torch.Tensor
        expected = PROBLEM.reference(Shape(init=init, dims={}), given)["out"]
        assert torch.equal(out, expected)


@pytest.mark.slow
def test_compile_is_compiled_once_for_all_token_counts(tmp_path: Path) -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    call = model(compiled(PROBLEM.spec), tmp_path, eps=1e-6)
    reference = model(eager(PROBLEM.spec), tmp_path, eps=1e-6)
    for tokens in (7, 128, 2, 2048, 300):
        given = inputs(tokens, 96)
        out = call(**given)
        assert type(out) is torch.Tensor
        torch.testing.assert_close(out, reference(**given), rtol=2**-7, atol=0)
    assert counters["stats"]["unique_graphs"] == 1
    call(**inputs(64, 160))
    assert counters["stats"]["unique_graphs"] == 2, "another hidden size is another code"


def test_every_way_to_return_outputs_is_written(tmp_path: Path) -> None:
    for returns, expected in [("dict", dict), ("tuple", tuple)]:
        spec = PROBLEM.spec.model_copy(update={"returns": returns})
        out = model(eager(spec), tmp_path)(**inputs(3, 16))
        assert type(out) is expected
        assert len(out) == 1
