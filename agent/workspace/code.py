"""The code in a workspace: the readable reference, the skeleton of the kernel, the commands."""

from __future__ import annotations

import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from agent.definitions import needed
from atrex.contract import ProblemSpec
from atrex.errors import UsageError
from atrex.problem import Problem
from atrex.records import Device, Dsl

CHECKOUT = Path(__file__).resolve().parents[2]  # or the directory that the packages are installed in
_ANNOTATIONS = {"float": "float", "int": "int", "bool": "bool", "str": "str", "list": "list[int]"}


def reference(problem: Problem) -> str:
    """The eager reference as a file of its own, in the candidate's form: what the operator computes.

    Taken from bench/<operator>/reference.py: the function, and what it calls there. The oracle, the probes
    and the input generators stay behind.
    """
    module = inspect.getsource(problem.module)
    parts = "\n\n\n".join(needed(module, "reference"))
    spec = problem.spec
    defaults = {name: init.default for name, init in spec.init.items()}
    return (
        f'"""{spec.operator} in eager PyTorch: {_sentence(spec.summary)}\n\n'
        "The reference that a kernel is compared with and has to beat. For reading, and for\n"
        '`./measure reference.py`: the judge uses its own copy.\n"""\n\n'
        f"{parts}\n\n\n"
        "class Model(nn.Module):\n"
        '    """The reference, called as a candidate is."""\n\n'
        "    def __init__(self, **init):\n"
        "        super().__init__()\n"
        f"        self.init = {{**{defaults!r}, **init}}\n\n"
        "    def forward(self, **inputs):\n"
        "        outputs = reference(self.init, inputs)\n"
        f"        return {_returned(spec, lambda name: f'outputs[{name!r}]', 'outputs')}\n"
    )


def skeleton(spec: ProblemSpec, dsl: Dsl) -> str:
    """A kernel file in the right form that computes nothing yet. Raises UsageError for other languages."""
    if dsl not in _KERNELS:
        raise UsageError(f"no skeleton of a kernel in {dsl}; choose {' or '.join(_KERNELS)}")
    head, imports = _KERNELS[dsl]
    init = "".join(f", {_argument(name, spec)}" for name in spec.init)
    kept = "".join(f"        self.{name} = {name}\n" for name in spec.init)
    inputs = "".join(
        f", {name}: torch.Tensor" + (" | None = None" if tensor.optional else "")
        for name, tensor in sorted(spec.inputs.items(), key=lambda item: item[1].optional)
    )
    shapes = "; ".join(
        f"{name} [{', '.join(map(str, tensor.shape))}] {tensor.dtype}" for name, tensor in spec.inputs.items()
    )
    returned = _returned(spec, str, "{" + ", ".join(f'"{name}": {name}' for name in spec.outputs) + "}")
    return (
        f'"""{spec.operator}: {_sentence(spec.summary)}"""\n\n{imports}\n\n\n{head.strip()}\n\n\n'
        f"class Model(nn.Module):\n    def __init__(self{init}) -> None:\n"
        f"        super().__init__()\n{kept}\n"
        f"    def forward(self{inputs}):\n"
        f"        # {shapes}\n"
        f"        # return {returned}\n"
        f'        raise NotImplementedError("launch the kernel here")\n'
    )


_TRITON = """
@triton.jit
def kernel(out, size, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, 0.0, mask=at < size)

"""
_CPP = '''
SOURCE = r"""
#include <cstdint>

extern "C" void kernel(uint16_t* out, int64_t size) {
    for (int64_t i = 0; i < size; ++i) out[i] = 0;  // bf16 is the high half of an fp32
}
"""

# Compiled with -O3 -march=native -fopenmp; a tensor is passed as tensor.data_ptr().
library = cpp.compile(SOURCE, {"kernel": [cpp.pointer, cpp.i64]})

'''
_KERNELS: dict[str, tuple[str, str]] = {
    "triton": (_TRITON, "import torch\nimport triton\nimport triton.language as tl\nfrom torch import nn"),
    "cpp": (_CPP, "import torch\nfrom torch import nn\n\nfrom atrex.dsl import cpp"),
}


def _argument(name: str, spec: ProblemSpec) -> str:
    return f"{name}: {_ANNOTATIONS[spec.init[name].type]} = {spec.init[name].default!r}"


def _returned(spec: ProblemSpec, each: Callable[[str], str], whole: str) -> str:
    joined = ", ".join(map(each, spec.outputs))
    return {"tensor": joined, "dict": whole, "tuple": f"({joined},)"}[spec.returns]


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace('"""', "'''").rstrip(".") + "."


def command(name: str, operator: str, device: Device, cases: str) -> str:
    """A script that runs `atrex NAME` of this installation on the visible cases.

    The file is kernel.py unless the first argument is another; further options are passed on. Nothing is
    written beside the packages, and the current directory is no import path.
    """
    path = f"PYTHONPATH={shlex.quote(str(CHECKOUT))}${{PYTHONPATH:+:$PYTHONPATH}} "
    return (
        "#!/bin/sh\n"
        'cd "$(dirname "$0")" || exit 3\n'
        "FILE=kernel.py\n"
        'case "$1" in *.py) FILE=$1; shift ;; esac\n'
        "PYTHONDONTWRITEBYTECODE=1 "
        f"{path if (CHECKOUT / 'pyproject.toml').exists() else ''}"
        f'exec {shlex.quote(sys.executable)} -P -m atrex {name} "$FILE" '
        f'--op {operator} --device {device} --workload {shlex.quote(cases)} "$@"\n'
    )
