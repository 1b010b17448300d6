"""Marks for torch.compile cost nothing until somebody compiles, and hold from then on."""

from __future__ import annotations

import subprocess
import sys

REFERENCES = """
import sys
from atrex.problem import load_problem, operators

for name in operators():
    load_problem(name)
assert "torch._dynamo" not in sys.modules
"""

# A function of a module that says whether it is compiled, called by a compiled one.
MARKED = """
import sys, types
import torch
from bench import compiling

module = types.ModuleType("marked")
sys.modules["marked"] = module
exec('''
import torch
from bench.compiling import host_loop, not_compiled


def inner():
    return torch.compiler.is_compiling()


@host_loop
def loop():
    return torch.compiler.is_compiling(), inner()


@not_compiled
def library():
    return torch.compiler.is_compiling(), inner()


def reference():
    return torch.ones(1), loop(), library()
''', module.__dict__)
assert module.reference()[1:] == ((False, False), (False, False))
assert torch.compile(module.reference, backend="eager")()[1:] == ((True, True), (True, True))
compiling.heed_marks()
torch._dynamo.reset()
assert torch.compile(module.reference, backend="eager")()[1:] == ((False, True), (False, False))
"""


def python(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=300)


def test_references_do_not_import_the_compiler() -> None:
    ran = python(REFERENCES)
    assert ran.returncode == 0, ran.stderr


def test_marks_are_heeded() -> None:
    ran = python(MARKED)
    assert ran.returncode == 0, ran.stderr
