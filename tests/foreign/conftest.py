"""Small collections in the formats of public ones, written for these tests: right and wrong kernels."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

SEPARATOR = "#" * 146

TASK = '''
import torch
import torch.nn as nn


class Model(nn.Module):
    """Scale, shift, clip below at zero."""

    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x, shift):
        return torch.relu(x * self.scale + shift)


def get_inputs():
    return [torch.randn(8, 50), torch.randn(8, 50)]


def get_init_inputs():
    return [1.5]
'''

KERNEL = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_shift(x, shift, out, n, scale, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = tl.load(x + at, mask=inside, other=0.0) * scale + tl.load(shift + at, mask=inside, other=0.0)
    tl.store(out + at, tl.where(v != v, v, tl.maximum(v, 0.0)), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x, shift):
        assert x.is_cuda
        x, shift = x.contiguous(), shift.contiguous()
        out = torch.empty_like(x)
        scale_shift[(triton.cdiv(x.numel(), 128),)](x, shift, out, x.numel(), self.scale, BLOCK=128)
        return out
"""
# Within a tolerance of 1e-2, and wrong.
SLIGHTLY_WRONG = KERNEL.replace("* scale +", "* (scale * 1.0005) +")
FALLS_BACK = KERNEL.replace(
    "        out = torch.empty_like(x)\n", "        return torch.relu(x * self.scale + shift)\n"
)
NEEDS_CUDA = "from torch.utils.cpp_extension import load_inline\n" + KERNEL

FUNCTION = f"""
import torch


def shrink(input, other, alpha=1.0):
    return input * 0.5 - alpha * other

{SEPARATOR}

import torch


def test_shrink():
    results = {{}}
    a = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.25, -0.125]], device="cuda")
    results["test_case_1"] = shrink(a, torch.ones(2, 3, device="cuda"))
    b = torch.randn(7, 30, device="cuda")
    results["test_case_2"] = shrink(b, torch.rand(7, 30, device="cuda"), alpha=3)
    results["test_case_3"] = shrink(torch.randn(5, 9, device="cuda"), 2.0)
    return results

test_results = test_shrink()
"""

FUNCTION_KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def shrunk(x, y, out, n, alpha, NUMBER: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    other = y if NUMBER else tl.load(y + at, mask=inside, other=0.0)
    tl.store(out + at, tl.load(x + at, mask=inside, other=0.0) * 0.5 - alpha * other, mask=inside)


def shrink(input, other, alpha=1.0):
    number = not isinstance(other, torch.Tensor)
    input, other = input.contiguous(), other if number else other.contiguous()
    out = torch.empty_like(input)
    shrunk[(triton.cdiv(input.numel(), 64),)](input, other, out, input.numel(), alpha, number, BLOCK=64)
    return out
"""
IGNORES_ALPHA = FUNCTION_KERNEL.replace("- alpha * other", "- other")

HELPED_FUNCTION = FUNCTION.replace(
    'b, torch.rand(7, 30, device="cuda")',
    'rand_tensor((7, 30)), rand_tensor((7, 30), mode="outlier", outlier_prob=0.01)',
).replace("\n\ndef test_shrink", "\nfrom data_utils import rand_tensor\n\n\ndef test_shrink")

REFERENCE_FP64 = """
import numpy as np
from _refkit import emit, read_inputs


def main():
    inputs, _ = read_inputs()
    x = inputs["x"].astype(np.float64)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    emit(e / e.sum(axis=-1, keepdims=True))


if __name__ == "__main__":
    main()
"""

ARRAY_KERNEL = """
import numpy as np
import torch
import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    v = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * columns + at, e / tl.sum(e, axis=0), mask=inside)


def run(inputs):
    x = torch.from_numpy(np.ascontiguousarray(inputs["x"])).cuda()
    out = torch.empty_like(x)
    softmax_rows[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
    return out.cpu().numpy()
"""
# Padding counts as zeros in the sum: right only where the row is a power of two long.
PADDED = ARRAY_KERNEL.replace('other=-float("inf")', "other=0.0")

META = {
    "name": "softmax_triton",
    "source": "human",
    "benchmark_verdict": "pass",
    "input_names": ["x"],
    "dtypes": ["float32"],
    "tolerances": {"float32": 1e-4},
    "op_schema": {
        "dims": [{"name": "M", "candidates": [1, 3]}, {"name": "N", "candidates": [8, 19, 33]}],
        "inputs": [{"name": "x", "dims": ["M", "N"]}],
        "output": {"dims": ["M", "N"]},
    },
}

Write = Callable[[dict[str, str]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write files below a fresh directory."""

    def written(files: dict[str, str]) -> Path:
        root = tmp_path / "collection"
        root.mkdir(exist_ok=True)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return root

    return written


@pytest.fixture
def kernelbench(write: Write) -> Path:
    """Four samples of one problem: right, slightly wrong, a fallback to PyTorch, one that needs CUDA."""
    kernels = (KERNEL, SLIGHTLY_WRONG, FALLS_BACK, NEEDS_CUDA)
    samples = [{"sample_id": i, "compiled": True, "correctness": True} for i in range(3)]
    return write(
        {"level1/19_scale.py": TASK, "runs/eval_results.json": json.dumps({"19": samples})}
        | {f"runs/level_1_problem_19_sample_{i}_kernel.py": text for i, text in enumerate(kernels)}
    )


@pytest.fixture
def tritonbench(write: Write) -> Path:
    """A task with three calls of two kinds, and two kernels, one with a test below it."""
    return write(
        {
            "tasks/shrink.py": FUNCTION,
            "first/shrink.py": f"{FUNCTION_KERNEL}\n{SEPARATOR}\ndef test_shrink(): pass\nraise SystemExit\n",
            "second/shrink.py": IGNORES_ALPHA,
            "labels.json": json.dumps({"first/shrink": True, "second/shrink": True}),
        }
    )


@pytest.fixture
def kernelbenchx(write: Write) -> Path:
    """Predictions as lines of JSON, in Markdown, for a task whose test draws its inputs with a helper."""
    renamed = FUNCTION_KERNEL.replace("def shrink(", "def kernel_function(")
    lines = [
        {"file": "Math/shrink.py", "predict": f"Here it is:\n```python\n{renamed}```\n", "exe_ok": True},
        {"file": "Math/shrink.py", "predict": IGNORES_ALPHA, "exe_ok": False},
        {"file": "Math/absent.py", "predict": IGNORES_ALPHA},
    ]
    return write(
        {
            "Math/shrink.py": HELPED_FUNCTION,
            "predictions.jsonl": "\n".join(json.dumps(line) for line in lines),
        }
    )


@pytest.fixture
def gpuemu(write: Write) -> Path:
    """A control and its buggy variant."""
    files = {}
    for name, kernel in (("softmax_triton", ARRAY_KERNEL), ("softmax_triton_buggy", PADDED)):
        meta = META | {"name": name, "kernel": f"{name}/kernel.py", "reference": f"{name}/ref_fp64.py"}
        files |= {f"{name}/meta.json": json.dumps(meta), f"{name}/kernel.py": kernel}
        files[f"{name}/ref_fp64.py"] = REFERENCE_FP64
    return write(files)
