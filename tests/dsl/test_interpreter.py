"""The repaired interpreter, in child processes: TRITON_INTERPRET must be set before triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("ml_dtypes")

HERE = Path(__file__).parent

ADD = """
import sys
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, out, B: tl.constexpr):
    o = tl.arange(0, B)
    tl.store(out + o, tl.load(x + o) + tl.load(y + o))

x, y = torch.randn(2, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
out = torch.empty_like(x)
add[(1,)](x, y, out, 64)
print("right" if torch.equal(out, x + y) else "wrong", triton.__version__)
"""
REFUSED = """
from atrex.errors import EnvironmentProblem
from atrex.dsl import interpreter
try:
    interpreter.install()
except EnvironmentProblem as problem:
    print(problem)
"""


def child(arguments: list[str], interpret: str = "1") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment | {"TRITON_INTERPRET": interpret},
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize("file", ["kernels_interpreter.py", "addresses_interpreter.py"])
def test_kernels_in_the_repaired_interpreter(file: str) -> None:
    run = child(["-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", str(HERE / file)])
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-1000:]


def test_triton_alone_adds_bf16_wrongly(tmp_path: Path) -> None:
    script = tmp_path / "add.py"
    script.write_text(ADD)
    verdict = child([str(script)]).stdout
    if verdict.startswith("right"):
        pytest.skip(f"triton adds bf16 by itself: {verdict}")
    assert verdict.startswith("wrong")
    script.write_text("from atrex.dsl import interpreter; interpreter.install()" + ADD)
    assert child([str(script)]).stdout.startswith("right")


# Each in a child of one process that has imported it all: that takes seconds.
SPOILT = {
    "no ml_dtypes": ("sys.modules['ml_dtypes'] = None", "needs ml_dtypes: pip install 'atrex[triton]'"),
    "hook gone": ("del i._convert_float", "interpreter._convert_float"),
    "hook changed": ("i.ReduceOps.sum = lambda self, input, axis: None", "interpreter.ReduceOps.sum"),
    "unknown memory function": ("i._interpreter.bulk_copy = print", "native bulk_copy"),
    "useless": ("i.InterpreterBuilder.create_fadd = lambda _, a, b: a", "bf16 stays wrong"),
}
EACH = """
import os, sys
import triton.runtime.interpreter as i
for before in {before!r}:
    sys.stdout.flush()
    if not (child := os.fork()):
        exec(before + {then!r})
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_install_refuses_what_it_cannot_repair() -> None:
    run = child(["-c", EACH.format(before=[before for before, _ in SPOILT.values()], then=REFUSED)])
    lines = run.stdout.splitlines()
    assert len(lines) == len(SPOILT), run.stdout + run.stderr
    for name, (_, message), line in zip(SPOILT, SPOILT.values(), lines, strict=True):
        assert message in line, name


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ("", "set TRITON_INTERPRET=1"),
        ("import os, triton; os.environ['TRITON_INTERPRET'] = '1'", "imported before TRITON_INTERPRET=1"),
    ],
    ids=["off", "late"],
)
def test_install_refuses_another_triton(before: str, message: str) -> None:
    run = child(["-c", before + REFUSED], "0")
    assert message in run.stdout, run.stdout + run.stderr
    assert run.stdout.count("\n") == 1
