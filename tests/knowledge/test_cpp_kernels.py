"""The C++ kernels that a search on a CPU starts from: right however they are set, for every layout."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from atrex.problem import load_problem
from knowledge.item import ROOT, load_item
from tests.knowledge.test_reference_kernels import configs, judged, load, shapes

KERNELS = sorted((ROOT / "kernels" / "cpp").glob("*/*.py"))


def test_enough_operators_have_one_for_an_ablation() -> None:
    assert len({path.parent.name for path in KERNELS}) >= 6


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.parent.name)
def test_right_however_it_is_set(path: Path) -> None:
    """Some shapes with ends that fill no vector, under the shipped configuration and others."""
    item, problem, module = load_item(path), load_problem(path.parent.name), load(path)
    settings = module._plan if path.parent.name == "rms_norm" else module._settings
    rng, threads = random.Random(1), torch.get_num_threads()
    torch.set_num_threads(2)  # else no configuration splits anything
    try:
        for shape in shapes(problem, rng, 3):
            for config in configs(item, rng, 6):
                settings.cache_clear()  # of the table before
                wrong = judged(module, problem, shape, config, "cpu", rng.randrange(1 << 40))
                assert wrong == "", (shape.label(), config)
    finally:
        torch.set_num_threads(threads)
