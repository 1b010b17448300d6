"""The reference kernels that a search starts from: declared as they are read, and right however they are set.

Run as a script under TRITON_INTERPRET=1, this file judges interpreted kernels and prints what is wrong as
JSON: Triton reads that variable when it is imported, so the tests start a process for it.
"""

import importlib.util
import json
import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from agent import dispatch
from atrex.gates.outputs import judge_outputs
from atrex.inputs import build_inputs
from atrex.problem import Problem, load_problem
from atrex.protocol import InputSpec
from atrex.records import Shape
from knowledge.item import ROOT, Item, load_item
from traces.workload import load_workload

Config = dict[str, Any]

# Operators whose problem names no odd shapes: extents to give their first case instead.
SMALL: dict[str, list[dict[str, int]]] = {
    "silu_and_mul": [{"rows": 3, "last": 1}, {"rows": 5, "last": 600}, {"rows": 1, "last": 5120}],
    "layer_norm": [{"rows": 5, "last": 72}, {"rows": 3, "last": 1152}, {"rows": 2, "last": 9001}],
    "fused_add_rms_norm": [
        {"token_count": 5, "hidden_size": 72},
        {"token_count": 3, "hidden_size": 1280},
        {"token_count": 2, "hidden_size": 9001},
    ],
    "l2_norm": [
        {"num_tokens": 5, "hidden_size": 72},
        {"num_tokens": 3, "hidden_size": 1280},
        {"num_tokens": 2, "hidden_size": 9001},
    ],
    "moe_sum_reduce": [
        {"token_count": 3, "top_k": 5, "hidden_size": 100},
        {"token_count": 2, "top_k": 9, "hidden_size": 2048},
    ],
    "per_token_group_quant_fp8": [
        {"token_count": 5, "hidden_size": 128},
        {"token_count": 3, "hidden_size": 1152},
    ],
}
ELEMENTS = {
    "attention_forward": range(100, 4_000),
    "block_scaled_mm": range(1, 70_000),
    "topk_filter": range(300, 40_000),
}
"""Of the largest tensor of an odd shape that is taken: more takes an interpreter too long."""

KERNELS = [
    path for path in sorted((ROOT / "kernels" / "triton").glob("*/*.py")) if path.parent.name != "rms_norm"
]
every_kernel = pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.parent.name)
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def first_case(problem: Problem) -> Shape:
    return problem.shape(load_workload("atrex-bench").cases(problem.operator)[0])


def shapes(problem: Problem, rng: random.Random, count: int) -> list[Shape]:
    """Small shapes of an operator: some of its odd ones, or its first case with other extents."""
    if problem.operator in SMALL:
        whole = first_case(problem)
        return [problem.resize(whole, **dims) for dims in SMALL[problem.operator]][:count]
    legal = ELEMENTS.get(problem.operator, range(100, 10_000))
    odd = [s for s in problem.odd() if problem.elements(s) in legal and min(s.dims.values()) > 0]
    return rng.sample(odd, min(count, len(odd)))


def configs(item: Item, rng: random.Random, count: int) -> list[Config]:
    """The configuration as shipped, and others drawn from all legal ones."""
    found: list[Config] = [dict(dispatch.read(item.source_code())[-1].config)]
    while len(found) < count:
        drawn = {name: rng.choice(values) for name, values in item.tunables.items()}
        found += [drawn] if drawn not in found else []
    return found


def table(problem: Problem, shape: Shape, config: Config) -> list[tuple[dict[str, int], Config]]:
    """A dispatch table that gives `config` at this very shape; a rule that should not hold has nothing."""
    # How long the longest sequence is only the device knows: see attention_forward's note.
    known = [name for name, extent in shape.dims.items() if name != "longest" and extent > 0]
    below: list[tuple[dict[str, int], Config]] = [({name: shape.dims[name] - 1}, {}) for name in known]
    return [*below, (dict(shape.dims), config), ({}, {})]


def judged(module: ModuleType, problem: Problem, shape: Shape, config: Config, device: str, seed: int) -> str:
    """What is wrong with the outputs under a configuration, on packed rows and on spread ones; else empty."""
    module.DISPATCH = table(problem, shape, config)  # type: ignore[attr-defined]
    model = module.Model(**shape.init).to(device)
    spread = {name: "row_stride" for name, tensor in problem.spec.inputs.items() if tensor.role == "data"}
    place, recipe = torch.device(device), InputSpec(shape=shape, seed=seed)
    inputs = build_inputs(problem, recipe, place)[0]
    packed = {name: tensor.clone() for name, tensor in call(problem, model, recipe, place).items()}
    found, _ = judge_outputs(problem, shape, inputs, packed)
    if found:
        return f"{found[0]}: {found[1]}"
    again = call(problem, model, recipe.model_copy(update={"layouts": spread}), place)
    if any(not same_bits(again[name], tensor) for name, tensor in packed.items()):
        return "spread rows give other bits"
    return ""


def call(problem: Problem, model: Any, recipe: InputSpec, place: torch.device) -> dict[str, torch.Tensor]:
    """One call's outputs, by name."""
    return named(problem, model(**build_inputs(problem, recipe, place)[0]))


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


def named(problem: Problem, outputs: Any) -> dict[str, torch.Tensor]:
    if isinstance(outputs, torch.Tensor):
        outputs = (outputs,)
    if isinstance(outputs, tuple):
        return dict(zip(problem.spec.outputs, outputs, strict=True))
    assert isinstance(outputs, dict)
    return outputs


def complaints(path: Path, device: str, count: int) -> dict[str, str]:
    """What is wrong, by configuration and shape: `count` configurations, each on two or three shapes."""
    item, operator = load_item(path), path.parent.name
    module, problem, rng = load(path), load_problem(operator), random.Random(f"{operator}/{count}")
    found = {}
    for config in configs(item, rng, count):
        for shape in shapes(problem, rng, min(count, 3)):
            what = judged(module, problem, shape, config, device, rng.getrandbits(32))
            found[f"{config} {shape.dtype} {dict(shape.init)} {dict(shape.dims)}"] = what
    return found


def unread(path: Path, device: str) -> list[str]:
    """Tunables without which the kernel runs all the same, on each of two shapes."""
    module, problem = load(path), load_problem(path.parent.name)
    tried = shapes(problem, random.Random(0), 2)
    shipped = dispatch.read(path.read_text())[-1].config
    found = []
    for name in shipped:
        config = {key: value for key, value in shipped.items() if key != name}
        try:
            for shape in tried:
                judged(module, problem, shape, config, device, 0)
        except KeyError:
            continue
        found.append(name)
    return found


def interpreted(count: int) -> dict[str, Any]:
    """All kernels judged in a process in which Triton interprets them."""
    child = subprocess.run(
        [sys.executable, __file__, str(count)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    report = json.loads(child.stdout.splitlines()[-1])
    assert isinstance(report, dict)
    return report


@pytest.fixture(scope="module")
def quick() -> dict[str, Any]:
    return interpreted(2)


def test_operators_of_many_kinds_have_a_kernel() -> None:
    families = {load_problem(path.parent.name).spec.family for path in KERNELS}
    assert {"reduction", "elementwise", "quantisation", "scatter", "gemm", "attention", "routing"} <= families
    assert len(KERNELS) >= 14


@every_kernel
def test_the_table_and_the_tunables_agree(path: Path) -> None:
    item, source = load_item(path), path.read_text()
    dims = load_problem(path.parent.name).spec
    rules = dispatch.read(source)
    assert not rules[-1].bounds
    assert item.tunables
    for rule in rules:
        assert set(rule.bounds) <= {*dims.dims, *dims.derived}
        assert rule.config.keys() == item.tunables.keys()
        for name, value in rule.config.items():
            assert value in item.tunables[name], f"{name}: {value}"


@every_kernel
def test_values_ascend_and_leave_a_choice(path: Path) -> None:
    for name, values in load_item(path).tunables.items():
        assert len(values) > 1, name
        if all(isinstance(value, int) for value in values):
            assert all(low < high for low, high in pairwise(values)), name  # type: ignore[operator]
        assert len(set(values)) == len(values), name


@every_kernel
def test_every_tunable_is_read(path: Path, quick: dict[str, Any]) -> None:
    assert quick[path.parent.name]["unread"] == []


@every_kernel
def test_right_however_it_is_set(path: Path, quick: dict[str, Any]) -> None:
    found = quick[path.parent.name]["complaints"]
    assert len(found) >= 4
    assert not {what: wrong for what, wrong in found.items() if wrong}


@pytest.mark.slow
def test_right_under_many_configurations() -> None:
    report = interpreted(8)
    wrong = {
        f"{operator} {what}": complaint
        for operator, found in report.items()
        for what, complaint in found["complaints"].items()
        if complaint
    }
    assert not wrong


@pytest.mark.gpu
@needs_gpu
@every_kernel
def test_right_when_compiled(path: Path) -> None:
    found = complaints(path, "cuda", 6)
    assert not {what: wrong for what, wrong in found.items() if wrong}


def main(count: int) -> None:
    from atrex.dsl import interpreter

    interpreter.install()
    report = {
        path.parent.name: {"complaints": complaints(path, "cpu", count), "unread": unread(path, "cpu")}
        for path in KERNELS
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]))
