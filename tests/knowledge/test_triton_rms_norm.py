"""The Triton rms_norm kernels: on the CPU through the interpreter at small shapes, on a GPU at real ones.

Run as a script, under TRITON_INTERPRET=1, this file prints the interpreted kernels' errors as JSON: Triton
reads that variable when it is imported, so the tests start a process for it.
"""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

ROOT = Path(__file__).resolve().parents[2]
KERNEL = ROOT / "knowledge" / "kernels" / "triton" / "rms_norm" / "row_tiles.py"
INTERPRETER = ROOT / "atrex" / "dsl" / "interpreter.py"
EPS = 1e-6
PRODUCTION_HIDDEN_SIZES = [128, 256, 512, 1024, 1152, 1280, 1536, 2048, 2560, 3584, 5120, 7168, 8192]

Config = dict[str, Any]
# Every kind of tile: one row or several, exact or ragged chunks, half a warp to many warps a row, two passes.
CONFIGS: list[Config] = [
    {"block": 128, "rows": 8, "num_warps": 4},
    {"block": 128, "rows": 2, "num_warps": 1},
    {"block": 256, "rows": 4, "num_warps": 2, "cache": "stream"},
    {"block": 512, "rows": 2, "num_warps": 4},
    {"block": 1024, "rows": 1, "num_warps": 4},
    {"block": 4096, "rows": 1, "num_warps": 1},
]

gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def load(path: Path = KERNEL) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_with(module: ModuleType, **config: Any) -> Any:
    whole = {"cache": "default", "pdl": 1} | config
    module.DISPATCH = [({}, whole)]  # type: ignore[attr-defined]
    return module.Model(eps=EPS)


def worst_error(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float = EPS) -> float:
    """Largest |out - fp64 formula| as a fraction of half a bf16 ulp plus 2^-15 of the value."""
    wide = x.double()
    exact = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + eps) * weight.double()
    half_ulp = torch.exp2(torch.frexp(exact).exponent.double() - 9)
    error = (out.double() - exact).abs() / (half_ulp + exact.abs() * 2.0**-15)
    return float(error.nan_to_num(float("inf")).max())


def draw(t: int, h: int, device: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(seed)
    x = torch.randn(t, h, generator=generator, device=device) * 3
    weight = 1 + torch.randn(h, generator=generator, device=device)
    return x.bfloat16(), weight.bfloat16()


def odd_layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Copies of x with the same values in other memory layouts."""
    t, h = x.shape
    wide = torch.full((t, h + 16), float("nan"), dtype=x.dtype, device=x.device)
    wide[:, :h] = x
    uneven = torch.full((t, h + 3), float("nan"), dtype=x.dtype, device=x.device)
    uneven[:, 3:] = x
    offset = torch.full((t * h + 1,), float("nan"), dtype=x.dtype, device=x.device)[1:].view(t, h)
    offset.copy_(x)
    return {
        "row-strided": wide[:, :h],
        "unaligned rows": uneven[:, 3:],
        "offset by 2 bytes": offset,
        "transposed": x.t().contiguous().t(),
    }


def front_matter() -> dict[str, Any]:
    docstring = ast.get_docstring(ast.parse(KERNEL.read_text()), clean=False)
    assert docstring
    found = yaml.safe_load(docstring.split("---")[1])
    assert isinstance(found, dict)
    return found


def dispatch() -> list[tuple[dict[str, int], Config]]:
    source = KERNEL.read_text().split("# atrex: dispatch\n")[1].split("# atrex: end\n")[0]
    table = ast.literal_eval(source.split("=", 1)[1].strip())
    assert isinstance(table, list)
    return table


def test_every_rule_gives_every_tunable_a_declared_value() -> None:
    tunables = front_matter()["tunables"]
    for bounds, config in dispatch():
        assert set(bounds) <= {"token_count", "hidden_size"}
        assert config.keys() == tunables.keys()
        for name, value in config.items():
            assert value in tunables[name], f"{name}: {value}"


def test_the_last_rule_alone_has_no_bounds() -> None:
    unbounded = [not bounds for bounds, _ in dispatch()]
    assert unbounded == [False] * (len(unbounded) - 1) + [True]


def test_the_table_sums_a_row_in_one_order_whatever_the_batch() -> None:
    """Batch invariance by construction: for a given H, block and the warps that share a row are fixed."""
    module = load()
    assert dispatch() == module.DISPATCH
    for h in [*PRODUCTION_HIDDEN_SIZES, 1, 100, 999, 4000, 16384, 65536]:
        orders = set()
        for t in [1, 64, 65, 2048, 2049, 4096, 16384, 10**6]:
            resident, _, constants = module._plan(t, h, "cuda")
            lanes = 8 if h % 16 == 0 else 1
            rows = constants.get("ROWS", 1)
            assert rows * constants["BLOCK"] >= lanes * 32 * constants["num_warps"]
            orders.add(
                (resident, constants["BLOCK"], min(constants["num_warps"], max(1, constants["BLOCK"] // 256)))
            )
        assert len(orders) == 1, (h, orders)


@pytest.mark.skipif(not INTERPRETER.exists(), reason="needs atrex/dsl/interpreter.py")
@pytest.mark.slow
def test_interpreted_kernels_agree_with_fp64() -> None:
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    child = subprocess.run(
        [sys.executable, __file__], env=environment, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr[-2000:]
    errors = json.loads(child.stdout.splitlines()[-1])
    assert len(errors) > 50
    assert not {case: error for case, error in errors.items() if error > 1}


def interpreted_errors() -> dict[str, float]:
    from atrex.dsl import interpreter

    interpreter.install()
    module, errors = load(), {}
    for config in CONFIGS:
        model = model_with(module, **config)
        for t, h in [(1, 1), (5, 128), (9, 100), (3, 1152), (2, 4000)]:
            x, weight = draw(t, h, "cpu")
            out = model(x, weight)
            errors[f"{config} {t} {h}"] = worst_error(x, weight, out)
            for layout, same in odd_layouts(x).items():
                agrees = torch.equal(model(same, weight), out)
                errors[f"{config} {t} {h} {layout}"] = 0.0 if agrees else float("inf")
    return errors


@gpu
@needs_gpu
@pytest.mark.parametrize("config", [*CONFIGS, {}], ids=str)
@pytest.mark.parametrize("pdl", [0, 1])
def test_accuracy_and_layouts(config: Config, pdl: int) -> None:
    module = load()
    model = model_with(module, **config, pdl=pdl) if config else module.Model(eps=EPS)
    for t, h in [(1, 1), (7, 100), (33, 999), (130, 1152), (65, 2056), (17, 7168), (3, 16384), (2, 65536)]:
        x, weight = draw(t, h, "cuda")
        before = x.clone(), weight.clone()
        torch.cuda.empty_cache()
        out = model(x, weight)
        assert worst_error(x, weight, out) <= 1, (t, h)
        assert torch.equal(x, before[0])
        assert torch.equal(weight, before[1])
        for layout, same in odd_layouts(x).items():
            assert torch.equal(model(same, weight), out), (t, h, layout)
        spread = torch.stack([weight, weight + 1], dim=1)
        assert torch.equal(model(x, spread[:, 0]), out), (t, h, "strided weight")
        shifted = torch.cat([weight[:1], weight])[1:]
        assert torch.equal(model(x, shifted), out), (t, h, "offset weight")
        repeated = model(x[:1].expand(t, h), weight)
        assert torch.equal(repeated, out[:1].expand(t, h)), (t, h, "expanded")


@gpu
@needs_gpu
@pytest.mark.parametrize("h", PRODUCTION_HIDDEN_SIZES)
def test_batch_invariance(h: int) -> None:
    """A row gives the same bits whatever batch it came in, through every rule of the table."""
    model = load().Model(eps=EPS)
    x, weight = draw(70_000 if h <= 1152 else 9_000, h, "cuda")
    whole = model(x, weight)
    for t in [1, 3, 63, 64, 65, 500, 2048, 2500, 5000, 9000]:
        assert torch.equal(model(x[:t], weight), whole[:t]), t


@gpu
@needs_gpu
def test_more_than_two_to_the_31_elements() -> None:
    h = 128
    t = 2**31 // h + 5
    x, weight = draw(1000, h, "cuda")
    long = x.repeat(t // 1000 + 1, 1)[:t]
    out = load().Model(eps=EPS)(long, weight)
    assert worst_error(long[-1500:], weight, out[-1500:]) <= 1
    assert torch.equal(out[:1000], out[-(t % 1000) - 1000 : t - t % 1000])


@gpu
@needs_gpu
def test_specials_travel_as_in_eager() -> None:
    model = load().Model(eps=EPS)
    for h in (128, 999, 7168):
        x, weight = draw(6, h, "cuda")
        x[0, h // 2], x[1, 0], x[2, h - 1] = float("nan"), float("inf"), float("-inf")
        x[3] = 0.0
        x[4] = x[4] * 2.0**-130  # subnormal in bf16, and a sum of squares of zero
        wide = x.float()
        eager = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + EPS) * weight.float()
        assert torch.allclose(model(x, weight).float(), eager, rtol=2**-7, atol=2.0**-126, equal_nan=True)


@gpu
@needs_gpu
def test_an_overlapped_launch_waits_for_its_input() -> None:
    """A chain in which every launch reads what the one before wrote, with and without overlap, 20 replays."""
    module = load()
    x, weight = draw(4096, 1024, "cuda")
    results = []
    for pdl in (0, 1):
        model = model_with(module, block=256, rows=2, num_warps=2, pdl=pdl)
        model(x, weight)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = x
            for _ in range(32):
                out = model(out, weight)
        for _ in range(20):
            out.fill_(float("nan"))
            graph.replay()
            results.append(out.clone())
    assert all(torch.equal(result, results[0]) for result in results)
    assert not results[0].isnan().any()


@gpu
@needs_gpu
def test_refusals_are_clear() -> None:
    model = load().Model(eps=EPS)
    x, weight = draw(4, 64, "cuda")
    for bad in [(x.float(), weight), (x, weight[:-1]), (x[0], weight), (x, weight.cpu())]:
        with pytest.raises(ValueError, match="rms_norm wants"):
            model(*bad)
    assert model(x[:0], weight).shape == (0, 64)


if __name__ == "__main__":
    print(json.dumps(interpreted_errors()))
