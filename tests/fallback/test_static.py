"""The static pass: single tricks, told apart; and files that are no files."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from atrex.fallback.records import FileReport, Outcome
from atrex.fallback.scan import Job, find, hunt, scan
from atrex.fallback.static import analyse, analyse_text, operator_of

KERNEL = """
import torch, triton
import triton.language as tl
from torch import nn
import torch.nn.functional as F

@triton.jit
def _k(out, x, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(x + i, i < n, other=0.0).to(tl.float32)
    tl.store(out + i, v * tl.sigmoid(v), i < n)

def launch(x):
    out = torch.empty_like(x)
    _k[(triton.cdiv(x.numel(), 256),)](out, x, x.numel(), B=256)
    return out
"""

HONEST = KERNEL + "class Model(nn.Module):\n    def forward(self, x):\n        return launch(x)\n"


def read(body: str, *, kernel: bool = True, operator: str = "") -> FileReport:
    """The report on a Model whose forward has this body."""
    forward = textwrap.indent(textwrap.dedent(body).strip(), " " * 8)
    head = KERNEL if kernel else "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
    source = f"{head}\n\nclass Model(nn.Module):\n    def forward(self, x):\n{forward}\n"
    return analyse_text(source, "x.py", operator)


class TestVerdicts:
    @pytest.mark.parametrize(
        "body",
        [
            "return launch(x)",
            "return launch(x.contiguous().view(-1)).view(x.shape).to(x.dtype)",
            "assert x.is_cuda and x.shape[-1] * 2 > 0\nreturn launch(x)",
            "if x.numel() == 0:\n    return torch.empty_like(x)\nreturn launch(x)",
            "if x.dim() > 9:\n    raise NotImplementedError('torch.matmul')\nreturn launch(x)",
            "parts = [launch(p) for p in x.split(128)]\nreturn torch.cat(parts)",
            "try:\n    return launch(x)\nexcept RuntimeError as e:\n    raise ValueError('F.silu') from e",
            "run = launch\nreturn run(x)",
            "import nvtx\nwith nvtx.annotate('norm'):\n    return launch(x)",
            "import timing\ntimer = timing.Timer()\ntimer.start()\nreturn launch(x)",
            "return (lambda t: launch(t))(x)",
            "out = torch.empty_like(x)\nfor k in {0: _k}.values():\n    k[lambda m: (4,)](out, x, 4, B=1)\n"
            "return out",
        ],
    )
    def test_own_kernels(self, body: str) -> None:
        report = read(body)
        assert report.verdict is Outcome.KERNEL, report.findings
        assert not report.findings

    @pytest.mark.parametrize(
        ("body", "operation", "line"),
        [
            ("return launch(x) * 2", "`launch(x) * 2`", 0),
            ("y = launch(x)\nreturn F.layer_norm(y, y.shape[-1:])", "torch.nn.functional.layer_norm", 1),
            ("y = launch(x)\ny += x\nreturn y", "`y + x`", 1),
            ("if x.shape[0] < 8:\n    return F.silu(x)\nreturn launch(x)", "torch.nn.functional.silu", 1),
            ("try:\n    return launch(x)\nexcept Exception:\n    return x.exp()", "torch.Tensor.exp", 3),
            ("buffer = torch.zeros_like(x)\n_k[(1,)](buffer, x, 9, B=16)\nreturn buffer.sum(-1)",
             "torch.Tensor.sum", 2),
            ("return getattr(torch, 're' + 'lu')(launch(x))", "torch.relu", 0),
        ],
    )  # fmt: skip
    def test_a_library_beside_them(self, body: str, operation: str, line: int) -> None:
        report = read(body)
        assert report.verdict is Outcome.PARTIAL
        first = KERNEL.count("\n") + 5
        assert (operation, first + line) in {(one.operation, one.line) for one in report.findings}

    @pytest.mark.parametrize(
        "body",
        [
            "return F.silu(x)",
            "if False:\n    return launch(x)\nreturn F.silu(x)",
            "return F.silu(x)\nreturn launch(x)",
            "_k[(0,)](x, x, 0, B=1)\nreturn F.silu(x)",
            "_k.warmup(x, x, 0, B=1, grid=(1,))\nreturn F.silu(x)",
            "return torch.zeros_like(x)",
        ],
    )
    def test_a_kernel_that_is_never_launched(self, body: str) -> None:
        report = read(body)
        assert report.verdict is Outcome.DEAD_KERNEL
        assert [one.operation for one in report.findings if one.kind == "dead-kernel"] == ["_k"]

    @pytest.mark.parametrize(
        "body", ["return F.silu(x)", "return x @ x.T", "return torch.compile(F.silu)(x)", "return x"]
    )
    def test_no_kernel_at_all(self, body: str) -> None:
        assert read(body, kernel=False).verdict is Outcome.FALLBACK

    @pytest.mark.parametrize(
        "body",
        [
            "import os\nreturn getattr(torch, os.environ['OP'])(x)",
            "import importlib, os\nreturn importlib.import_module(os.environ['M']).run(x)",
            "import os\nspace = {}\nexec(os.environ['CODE'], space)\nreturn space['run'](x)",
            "import ctypes\nctypes.CDLL('a.so').run(x.data_ptr())\nreturn x",
            "import somebody\nreturn somebody.fast(x)",
            "return torch.ops.somebody.fast(x)",
        ],
    )
    def test_what_reading_cannot_know(self, body: str) -> None:
        assert read(body, kernel=False).verdict is Outcome.UNRESOLVED

    def test_the_chain_of_calls_is_told(self) -> None:
        source = KERNEL + (
            "def inner(x):\n    return x.exp()\n\ndef outer(x):\n    return inner(x)\n\n"
            "class Model(nn.Module):\n    def forward(self, x):\n        return outer(launch(x))\n"
        )
        (finding,) = analyse_text(source, "x.py").findings
        assert [step.partition(":")[0] for step in finding.chain] == ["Model.forward", "outer", "inner"]

    def test_lengths_on_the_way_to_the_host_are_glue_and_as_work_are_not(self) -> None:
        source = KERNEL + (
            "class Model(nn.Module):\n    def forward(self, q, k, v, cu_seqlens_q, cu_seqlens_k):\n"
            "        longest = int(cu_seqlens_q.diff().max())\n        return launch(q[:longest]){}\n"
        )
        assert analyse_text(source.format(""), "x.py", "attention_forward").verdict is Outcome.KERNEL
        moved = source.format(", cu_seqlens_q.cumsum(0)")
        assert analyse_text(moved, "x.py", "attention_forward").verdict is Outcome.PARTIAL

    def test_a_flag_that_a_later_call_finds_changed_is_no_constant(self) -> None:
        source = KERNEL + (
            "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
            "        self.warm = False\n\n    def forward(self, x):\n        if self.warm:\n"
            "            return F.silu(x)\n        self.warm = True\n        return launch(x)\n"
        )
        assert analyse_text(source, "x.py").verdict is Outcome.PARTIAL


class TestNoFiles:
    def test_each_costs_one_row(self, tmp_path: Path) -> None:
        deep = "class Model:\n    def forward(self, x):\n        return "
        bad = {
            "parentheses.py": b"x = " + b"(" * 10_000 + b"1" + b")" * 10_000,
            "large.py": b"x = 1\n" * (10 * 1024 * 1024 // 6),
            "null.py": b"x = 1\n\0",
            "latin.py": "x = 'é'".encode("latin-1"),
            "sum.py": deep.encode() + b"x" + b" + 1" * 20_000,
            "minus.py": deep.encode() + b"-" * 20_000 + b"x",
            "attributes.py": deep.encode() + b"x" + b".t()" * 20_000,
            "empty.py": b"",
            "no_model.py": b"def f(x): return x\n",
        }
        for name, data in bad.items():
            (tmp_path / name).write_bytes(data)
        (tmp_path / "good.py").write_text(HONEST)
        os.mkfifo(tmp_path / "pipe.py")  # nobody waits for it
        reports = {one.file: one for one in scan([Job(path, name) for path, name in find(tmp_path)])}
        assert reports.pop("good.py").verdict is Outcome.KERNEL
        assert set(reports) == set(bad)
        assert {one.verdict for one in reports.values()} <= {Outcome.BROKEN, Outcome.UNRESOLVED}

    def test_a_file_that_grows_as_it_is_followed_ends(self) -> None:
        calls = "".join(
            f"def f{i}(x):\n    return f{i + 1}(x) if x is x else f{i + 1}(x)\n" for i in range(60)
        )
        model = "class Model:\n    def forward(self, x):\n        return f0(x)\n"
        source = f"{calls}def f60(x):\n    return x * 2\n{model}"
        assert analyse_text(source, "x.py").verdict is Outcome.UNRESOLVED

    def test_strings_that_would_fill_the_memory_are_not_put_together(self) -> None:
        body = (
            "s = 'a' * 60000\nfor _ in range(9):\n    s = f'{s}{s}'\n    s = s.replace('a', s)\n"
            "    s = s.join([s] * 30)\nt = '{:>999999999}'.format(1)\nu = '%999999999d' % 1\n"
            "v = f'{1:>999999999}'\nreturn x.exp()"
        )
        assert read(body, kernel=False).verdict is Outcome.FALLBACK

    def test_a_long_sum_is_not_written_out_again_and_again(self) -> None:
        report = read(f"return x{' + x' * 1200}", kernel=False)
        assert report.verdict is Outcome.FALLBACK
        assert max(len(one.operation) for one in report.findings) < 100

    def test_a_function_that_calls_itself(self) -> None:
        model = "class Model:\n    def forward(self, x):\n        return f(x)\n"
        source = f"{model}def f(x):\n    return f(x) + x.exp()\n"
        assert analyse_text(source, "x.py").verdict is Outcome.FALLBACK


class TestMany:
    def test_in_several_processes_the_order_stays(self, tmp_path: Path) -> None:
        source = HONEST.replace("launch(x)\n", "launch(x){}\n")
        for number in range(120):
            (tmp_path / f"{number:03}.py").write_text(source.format(" * 2" if number % 3 else ""))
        reports = list(scan([Job(path, name) for path, name in find(tmp_path)], 2))
        assert [one.file for one in reports] == [f"{number:03}.py" for number in range(120)]
        assert [one.flagged for one in reports] == [bool(number % 3) for number in range(120)]

    def test_shares_of_weight_and_speed(self) -> None:
        def report(name: str, operator: str, verdict: Outcome) -> FileReport:
            return FileReport(file=name, operator=operator, verdict=verdict, reason="")

        files = [
            report("a", "rms_norm", Outcome.KERNEL),
            report("b", "rms_norm", Outcome.FALLBACK),
            report("c", "l2_norm", Outcome.PARTIAL),
            report("d", "", Outcome.BROKEN),
        ]
        summary = hunt(
            files, {"rms_norm": 0.3, "l2_norm": 0.1, "mrope": 0.6}, {"a": 2.0, "b": 4.0, "c": 0.5}
        ).summary
        assert summary.weight is not None
        assert summary.weight[Outcome.KERNEL] == pytest.approx(0.375)
        assert summary.weight[Outcome.PARTIAL] == pytest.approx(0.25)
        assert summary.speedup_from_fallbacks == pytest.approx(2 / 3)
        assert summary.flagged == 3

    def test_no_torch_is_imported(self, tmp_path: Path) -> None:
        (tmp_path / "a.py").write_text(
            "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x.exp()\n"
        )
        code = (
            "import sys\nfrom atrex.cli import main\n"
            f"code = main(['fallbacks', {str(tmp_path)!r}, '--static', '--fail-on', 'partial'])\n"
            "assert code == 1, code\nassert 'torch' not in sys.modules\n"
        )
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_the_operator_is_read_off_the_path() -> None:
    assert operator_of(Path("runs/kernels/rms_norm.py")) == "rms_norm"
    assert operator_of(Path("out/rms-norm/attempt_3.py")) == "rms_norm"
    assert operator_of(Path("out/attempt_3.py")) == ""


@pytest.mark.parametrize("path", sorted(Path("tests/honest").glob("*/*/*.py")), ids=str)
def test_every_honest_kernel_is_its_own(path: Path) -> None:
    report = analyse(path)
    assert report.verdict is Outcome.KERNEL, report.findings
