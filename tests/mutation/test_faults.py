"""Each fault operator on small sources: exactly the expected change, and nothing else of the file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from atrex.problem import load_problem
from tests.mutation import faults_data
from tests.mutation.mutants import FAULTS, Kernel, honest_kernels, make_mutants, sample, twins
from tests.mutation.source import Source

HEAD = """\
import torch
import triton
import triton.language as tl

@triton.jit
def kernel(out, x, w, table, n, m, x_stride, w_stride, scale, eps, BLOCK: tl.constexpr):  # é, in two bytes
"""
LOAD = "    a = tl.load(x + tl.arange(0, BLOCK))\n"
HOST = """\
def forward(self, x, y):
"""


def kernel_of(body: str, head: str = HEAD) -> Kernel:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return Kernel("rms_norm", Path("synthetic.py"), "triton", head + lines)


def changes(kernel: Kernel, fault: str) -> list[tuple[str, str]]:
    """(old, new) lines of every mutant, without indentation; a mutant must change one line and no other."""
    found = list[tuple[str, str]]()
    before = kernel.source.splitlines()
    for mutant in make_mutants(kernel, [fault]):
        after = mutant.source.splitlines()
        assert len(after) == len(before)
        different = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if old != new]
        assert different == [mutant.line - 1]
        assert mutant.fault == fault
        found.append((before[different[0]].strip(), after[different[0]].strip()))
    return found


IN_KERNELS: dict[str, list[tuple[str, list[str]]]] = {
    "drop_mask": [
        ("v = tl.load(x + i, i < n, other=0.0)", ["v = tl.load(x + i)"]),
        ("v = tl.load(x + i, mask=i < n, other=0.0, cache_modifier='.cg')",
         ["v = tl.load(x + i, cache_modifier='.cg')"]),
        ("tl.store(out + i, v, mask)", ["tl.store(out + i, v)"]),
        ("tl.store(out + i, v)", []),
        ("inside = (i < n) & (j < m)", ["inside = (i < n)", "inside = (j < m)"]),
        ("low = bits & 7", []),
        ("s = tl.where(i < n, s, float('-inf'))", ["s = s"]),
    ],
    "off_by_one": [
        ("mask = i < n", ["mask = i < n - 1"]),
        ("mask = i < n * 2", ["mask = i < (n * 2) - 1"]),
        ("last = n - 1", ["last = n"]),
        ("last = n - 2", []),
    ],
    "comparison_flip": [
        ("mask = i < n", ["mask = i <= n"]),
        ("mask = i <= n", ["mask = i < n"]),
        ("mask = i[:, None] >= (n if n > m else m)",
         ["mask = i[:, None] > (n if n > m else m)", "mask = i[:, None] >= (n if n >= m else m)"]),
        ("same = i == n", []),
    ],
    "masked_value": [
        ("v = tl.load(x + i, i < n, other=float('-inf'))", ["v = tl.load(x + i, i < n, other=0.0)"]),
        ("v = tl.load(x + i, i < n, other=0.0)", ["v = tl.load(x + i, i < n, other=1.0)"]),
        ("v = tl.load(table + i, i < n, other=0)", ["v = tl.load(table + i, i < n, other=1)"]),
        ("peak = tl.full([BLOCK], -1e30, tl.float32)", ["peak = tl.full([BLOCK], 0.0, tl.float32)"]),
    ],
    "drop_rescale": [
        ("total = total * decay + tl.sum(p, axis=0)", ["total = total + tl.sum(p, axis=0)"]),
        ("result = tl.dot(p, v, result * decay[:, None])", ["result = tl.dot(p, v, result)"]),
        ("result *= decay", ["pass"]),
        ("result = other * decay", []),
    ],
    "drop_scale": [
        ("y = v * gain", ["y = gain", "y = v"]),
        ("y = (v + gain) * scale", ["y = (v + gain)", "y = scale"]),
        ("y = v * v", ["y = v"]),
        ("y = v / total", ["y = v"]),
        ("y = tl.div_rn(v, total)", ["y = v"]),
        ("y = tl.div_rn(1.0, total)", []),
        ("v = tl.load(x + i * x_stride)", []),
    ],
    "drop_eps": [
        ("y = tl.sqrt_rn(mean + eps)", ["y = tl.sqrt_rn(mean)"]),
        ("y = tl.maximum(peak / 448.0, 1e-10)", ["y = (peak / 448.0)"]),
        ("y = tl.maximum(peak, other)", []),
    ],
    "drop_clamp": [
        ("y = tl.clamp(v, -448.0, 448.0)", ["y = v"]),
        ("y = tl.minimum(v, 448.0)", ["y = v"]),
        ("y = tl.maximum(v, 1e-10)", []),
    ],
    "drop_addend": [
        ("y = v + bias", ["y = bias", "y = v"]),
        ("y = v - mean", ["y = v"]),
        ("total += v", ["total = v"]),
        ("y = mean + eps", []),
        ("y = tl.dot(p, v, result)", ["y = tl.dot(p, v)"]),
        ("v = tl.load(x + i)", []),
    ],
    "sign_flip": [
        ("y = v - mean", ["y = v + mean"]),
        ("y = (v-1)  +  mean", ["y = (v+1)  +  mean", "y = (v-1)  -  mean"]),
        ("y = -v", ["y = v"]),
        ("y = -1.0", []),
    ],
    "constant": [
        ("y = v * 2.0", ["y = v * 2.02"]),
        ("y = v * 0.0", []),
        ("y = tl.sqrt_rn(v)", ["y = v"]),
        ("y = tl.rsqrt(v + w)", ["y = (1.0 / (v + w))"]),
    ],
    "accumulator_dtype": [
        ("total += v", ["total = (total + v).to(tl.bfloat16).to(tl.float32)",
                        "total = (total + v).to(tl.float16).to(tl.float32)"]),
        ("y = tl.dot(p, v)", ["y = tl.dot(p, v).to(tl.bfloat16).to(tl.float32)",
                              "y = tl.dot(p, v).to(tl.float16).to(tl.float32)"]),
        ("y = v.to(tl.float32)", ["y = v"]),
        ("y = v.to(tl.bfloat16).to(tl.float32)", []),
    ],
    "skip_rounding": [
        ("y = (v * w).to(tl.bfloat16).to(tl.float32)",
         ["y = (v * w)", "y = (v * w).to(tl.float16).to(tl.bfloat16).to(tl.float32)"]),
        ("tl.store(out + i, v.to(tl.bfloat16))", ["tl.store(out + i, v.to(tl.float16).to(tl.bfloat16))"]),
        ("y = v.to(tl.float8e4nv)", ["y = v.to(tl.float32)"]),
    ],
    "wrong_stride": [
        ("v = tl.load(x + i * x_stride)", ["v = tl.load(x + i * w_stride)"]),
        ("v = x_stride", []),
    ],
}  # fmt: skip
CASES = [
    pytest.param(fault, line, expected, id=f"{fault}-{line}")
    for fault, lines in IN_KERNELS.items()
    for line, expected in lines
]


@pytest.mark.parametrize(("fault", "line", "expected"), CASES)
def test_a_line_of_a_kernel(fault: str, line: str, expected: list[str]) -> None:
    found = changes(kernel_of(f"first = tl.program_id(0)\n{line}"), fault)
    assert sorted(new for _, new in found) == sorted(expected)
    assert all(old == line for old, _ in found)


IN_HOSTS: dict[str, list[tuple[str, list[str]]]] = {
    "off_by_one": [
        ("kernel[(x.shape[0], 1)](x, y)", ["kernel[(x.shape[0] - 1, 1)](x, y)"]),
        ("kernel[lambda meta: (triton.cdiv(n, meta['B']),)](x)",
         ["kernel[lambda meta: (triton.cdiv(n, meta['B']) - 1,)](x)"]),
    ],
    "skip_chunk": [("chunks = triton.cdiv(n, block + 1)", ["chunks = (n // (block + 1))"])],
    "constant": [("scale = head_dim**-0.5", ["scale = head_dim**-1"]),
                 ("scale = 1 / math.sqrt(d)", ["scale = 1 / d"])],
    "comparison_flip": [("warps = 8 if n > 64 else 4", ["warps = 8 if n >= 64 else 4"]),
                        ("some = n > 0", [])],
    "wrong_stride": [
        ("s = x.stride(0), x.stride(-1)", ["s = x.shape[1:].numel(), x.stride(-1)", "s = x.stride(0), 1"]),
        ("s = x.stride()", ["s = x.contiguous().stride()"]),
        ("x = x.contiguous()", ["x = x"]),
        ("if x.stride(-1) != 1: pass", []),
    ],
    "drop_scale": [("n = x * y", [])],
}  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "line", "expected"),
    [
        pytest.param(fault, line, expected, id=f"{fault}-{line}")
        for fault, lines in IN_HOSTS.items()
        for line, expected in lines
    ],
)
def test_a_line_of_a_launcher(fault: str, line: str, expected: list[str]) -> None:
    found = changes(kernel_of(line, HOST), fault)
    assert sorted(new for _, new in found) == sorted(expected)


def test_a_loop_ends_early_and_its_index_is_stale() -> None:
    kernel = kernel_of(
        "for start in tl.range(4, n, BLOCK):\n    v = tl.load(x + start)\n    x += BLOCK\n    peak = higher"
    )
    assert changes(kernel, "skip_chunk") == [
        ("for start in tl.range(4, n, BLOCK):", "for start in tl.range(4, n - BLOCK, BLOCK):")
    ]
    assert sorted(new for _, new in changes(kernel, "stale_index")) == sorted(
        [
            "v = tl.load(x + (4))",
            "v = tl.load(x + tl.maximum(start - BLOCK, 4))",
            "pass",  # x += BLOCK
            "pass",  # peak = higher
        ]
    )


def test_a_block_table_entry_behind() -> None:
    kernel = kernel_of("block = tl.load(table + key // m)\nhalf = key // 2")
    assert changes(kernel, "stale_index") == [
        ("block = tl.load(table + key // m)", "block = tl.load(table + tl.maximum(key // m - 1, 0))")
    ]


def test_a_grid_behind_a_name() -> None:
    kernel = kernel_of("grid = (n, 4)\nkernel[grid](x, y)", HOST)
    assert changes(kernel, "off_by_one") == [("grid = (n, 4)", "grid = (n - 1, 4)")]


def test_another_input_of_the_same_shape() -> None:
    code = Source(f"{HOST}    kernel[(1,)](x, x.stride(0), y)\n    other(x)\n")
    texts = [code.apply(edits) for _, _, edits in faults_data.wrong_input(code, {"x": ("y",)})]
    assert texts == [f"{HOST}    kernel[(1,)](y, x.stride(0), y)\n    other(x)\n"]


def test_twins_are_declared_alike() -> None:
    found = twins(load_problem("fused_add_rms_norm"))
    assert found == {"x": ("residual",), "residual": ("x",), "weight": ()}


def test_addresses_are_followed_through_names_and_helpers() -> None:
    text = (
        "@triton.jit\ndef read(base, at):\n    return tl.load(base + at)\n\n"
        "@triton.jit\ndef kernel(x, n):\n    row = tl.program_id(0) * n\n    v = read(x, row * n)\n"
        "    tl.store(x + row, v * n)\n"
    )
    kernel = Kernel("rms_norm", Path("synthetic.py"), "triton", text)
    assert sorted(new for _, new in changes(kernel, "drop_scale")) == [
        "tl.store(x + row, n)",
        "tl.store(x + row, v)",
    ]


def test_checks_of_arguments_stay() -> None:
    text = (
        "def forward(x):\n    if x.shape[0] < 4:\n        raise ValueError('more than 4 < 5')\n    return x\n"
    )
    assert make_mutants(Kernel("rms_norm", Path("synthetic.py"), "triton", text)) == []


CPP = '''SOURCE = r"""
#include <cmath>
for (int i = 0; i < n; ++i) sum += a[i] * b[i];
for (int i = 0; i < n; i += 8) { }
out[r * out_stride] = 1 / std::sqrt(sum / n + eps) * scale;
"""
'''


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("off_by_one", ["for (int i = 0; i < n - 1; ++i) sum += a[i] * b[i];",
                        "for (int i = 0; i < n - 1; i += 8) { }"]),
        ("comparison_flip", ["for (int i = 0; i <= n; ++i) sum += a[i] * b[i];",
                             "for (int i = 0; i <= n; i += 8) { }"]),
        ("drop_addend", ["for (int i = 0; i < n; ++i) sum = a[i] * b[i];"]),
        ("drop_eps", ["out[r * out_stride] = 1 / std::sqrt(sum / n) * scale;"]),
        ("sign_flip", ["out[r * out_stride] = 1 / std::sqrt(sum / n - eps) * scale;"]),
        ("drop_scale", ["out[r * out_stride] = 1 / std::sqrt(sum + eps) * scale;",
                        "out[r * out_stride] = 1 / std::sqrt(sum / n + eps);"]),
        ("wrong_stride", ["out[r] = 1 / std::sqrt(sum / n + eps) * scale;"]),
        ("constant", ["out[r * out_stride] = 1 / (sum / n + eps) * scale;"]),
    ],
)  # fmt: skip
def test_cpp(fault: str, expected: list[str]) -> None:
    kernel = Kernel("rms_norm", Path("synthetic.py"), "cpp", CPP)
    assert sorted(new for _, new in changes(kernel, fault)) == sorted(expected)


# -- the set -------------------------------------------------------------------------------------------


def test_every_fault_is_tested() -> None:
    assert {*IN_KERNELS, *IN_HOSTS, "stale_index", "wrong_input"} == set(FAULTS)


def test_honest_kernels_are_found_and_ids_are_stable_and_unique() -> None:
    kernels = honest_kernels(["rms_norm"])
    assert {"rms_norm/triton/two_passes", "rms_norm/cpp/scalar"} <= {kernel.name for kernel in kernels}
    ids = [mutant.id for kernel in kernels for mutant in make_mutants(kernel)]
    assert ids == [mutant.id for kernel in honest_kernels(["rms_norm"]) for mutant in make_mutants(kernel)]
    assert len(set(ids)) == len(ids) > 200


def test_a_sample_spreads_over_the_faults() -> None:
    kernel = next(k for k in honest_kernels(["rms_norm"]) if k.path.stem == "two_passes")
    mutants = make_mutants(kernel)
    chosen = sample(mutants, 8)
    assert len(chosen) == len({mutant.fault for mutant in chosen}) == 8
    assert chosen == sample(mutants, 8)
    assert sample(mutants, None) == mutants
